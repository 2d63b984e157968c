"""A vendor that misbehaves at random, behind the service: only its own job suffers.

    python tests/benchmarks/vendor_trouble.py [--kind sfq ...] [--sequences 500] [--seed 1]

For each kind of client, a real service or stand-in of its vendor, and in front of it a proxy
that redirects to a stranger, floods, drips, refuses, is silent, and so on (``tests/support/trouble.py``).
A sequence has four users, each with a lease and a job; every ten sequences, the service, a
process, is stopped, and the next one started. It draws what befalls which requests and when,
whose job is submitted in between, whether the job of the fourth user is cancelled or loses
its lease, whether all requests about it are disturbed for good, and whether the service is
killed and started again. Then all other requests are answered again, and:

- the jobs of the three others are over in time, and the fourth's is, once it is cancelled
- no request has reached the stranger
- the service has never had more than 400 MB of memory
- SIGTERM ends it in time, with status 0, often amid another fault

The time limits of requests are half of the usual ones, the longest pauses after failures
a tenth.
The figures are printed as a line of JSON for each kind.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import re
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from sf_quantum.cli import main as sfq
from sf_quantum.errors import QuantumError
from sf_quantum.files import JSON
from sf_quantum.net import munge
from sf_quantum.net.transport import Client, Response
from sf_quantum.protocol.tasks import OVER
from sf_quantum.samplers.problem import document
from tests.support.folders import ROOT
from tests.support.lab_supervisor import munged_command
from tests.support.service import example_bqm
from tests.support.trouble import KINDS, Stranger, TroubledProxy
from tests.support.vendor import VendorProcess
from tests.support.waiting import until

USERS = ("ann", "bob", "cat")
VICTIM = "eve"
#: kinds of clients, and the options of the service that is their vendor, whose jobs take 0.3 s
VENDORS: Mapping[str, tuple[str, ...]] = {
    "sfq": ("--technology=annealer", "--qubits=40", "--time-scale=15"),
    "dwave": ("--technology=annealer", "--qubits=40", "--time-scale=15"),
    "iqm-server": ("--technology=superconducting", "--qubits=5", "--time-scale=0.03"),
    "pasqal-local": ("--technology=neutral-atom", "--time-scale=0.0025"),
    "acme": (),
}
CIRCUIT = """OPENQASM 3.0;
include "stdgates.inc";
gate prx(a, b) q { rz(-b) q; rx(a) q; rz(b) q; }
qubit[5] q;
bit[2] c;
prx(1.5, 0.0) q[0];
cz q[0], q[2];
c[0] = measure q[0];
c[1] = measure q[2];
"""
MEGABYTE = 1e6
MOST_BYTES = 400 * MEGABYTE
# in which a service has to end after SIGTERM, which the documentation tells
REST_SECONDS = 15.0
# for jobs to end, on a machine that does much else
END_SECONDS = 150.0
# A process without threads that forks a service for each line: imports take a second of CPU.
FORKER = """
import json, os, sys, signal, importlib
for name in sys.argv[1:]:
    importlib.import_module(name)
import gc
from sf_quantum import backoff
from sf_quantum.backoff import Backoff
from sf_quantum.cli import main
from sf_quantum.net import relay, transport
from sf_quantum.qpu.vendors import qrmi
from sf_quantum.service.device.vendor import settings
for name in ("VENDOR", "STATUS", "ACCESS", "LEASE", "REQUEST", "GIVEN_UP"):
    known = getattr(backoff, name)
    setattr(backoff, name, Backoff(known.first_seconds / 2, known.longest_seconds / 10))
exchange = transport.Client.exchange
def soon(self, method, path, body, headers, seconds, **more):
    return exchange(self, method, path, body, headers, seconds / 2, **more)
transport.Client.exchange = soon
qrmi.REQUEST_SECONDS /= 2
settings.STALE_SECONDS /= 2
if "dwave.system" in sys.argv:
    from sf_quantum.net import sessions
    guard = sessions.guard
    sessions.guard = lambda s, most, seconds, **more: guard(s, most, seconds / 2, **more)
gc.freeze()
for line in sys.stdin:
    told = json.loads(line)
    if "wait" in told:
        _, status = os.waitpid(told["wait"], 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
        continue
    if pid := os.fork():
        print(pid, flush=True)
        continue
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(told["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    status = main(told["words"])
    os._exit(status or 0)
"""
PRELOADED = (
    "sf_quantum.cli.qpu.serve",
    "sf_quantum.service.run",
    "sf_quantum.qpu.sfq.service_qpu",
)


class Forker:
    """Starts services in forks of one process."""

    def __init__(
        self,
        modules: tuple[str, ...],
        environment: Mapping[str, str],
        prefix: list[str],
    ) -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-c", FORKER, *PRELOADED, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **environment},
        )

    def ask(self, **told: JSON) -> int:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(told) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@dataclass
class Front:
    """The service in front of the vendor, which is killed and started again."""

    forker: Forker
    folder: Path
    pid: int = 0
    peak: int = 0
    last: str = ""

    @property
    def url(self) -> str:
        return f"unix:{self.folder / 's'}"

    def start(self) -> None:
        words: list[JSON] = [
            *("serve", "--config", str(self.folder / "service.yml")),
            *(
                "--socket",
                str(self.folder / "s"),
                "--state",
                str(self.folder / "state"),
            ),
            *("--auth", "token", "--tokens", str(self.folder.parent / "tokens.yml")),
            *("--log", "warning", "--drain", "0"),
        ]
        self.pid = self.forker.ask(words=words, log=str(self.folder / "log"))
        self.peak = 0

    def ask(
        self,
        user: str,
        method: str,
        path: str,
        body: Mapping[str, JSON] | None = None,
        lease: str | None = None,
    ) -> Response:
        token = (self.folder.parent / user).read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        if lease:
            headers["X-SFQ-Lease"] = lease
        return Client(self.url, headers).request(method, path, body, timeout_seconds=30)

    def answered(
        self,
        user: str,
        method: str,
        path: str,
        body: Mapping[str, JSON] | None = None,
        lease: str | None = None,
        statuses: tuple[int, ...] = (200, 201),
    ) -> dict[str, JSON]:
        """Repeat a request until it is answered with one of the statuses."""

        def told() -> dict[str, JSON] | None:
            with suppress(QuantumError):
                answer = self.ask(user, method, path, body, lease)
                if answer.status in statuses:
                    return {**answer.json(), "status_code": answer.status}
                self.last = f"{answer.status} {answer.body[:300]!r}"
            return None

        self.last = "no answer"
        try:
            return until(told, f"{method} {path} of {user}", END_SECONDS)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.last}") from error

    def measure(self) -> None:
        with suppress(OSError):
            status = Path(f"/proc/{self.pid}/status").read_text()
            # one that has ended, but is not waited for, has none
            for line in status.splitlines():
                if line.startswith("VmHWM"):
                    self.peak = max(self.peak, int(line.split()[1]) * 1024)

    def end(self, number: signal.Signals) -> tuple[int, float]:
        """Send a signal, and wait for the end; return the status and the seconds."""
        self.measure()
        begin = time.monotonic()
        file = os.pidfd_open(self.pid)
        try:
            os.kill(self.pid, number)
            while True:
                self.measure()
                if select.select([file], [], [], 0.1)[0]:
                    break
                if time.monotonic() > begin + 4 * REST_SECONDS:
                    os.kill(self.pid, signal.SIGKILL)
        finally:
            os.close(file)
        seconds = time.monotonic() - begin
        status = self.forker.ask(wait=self.pid)
        self.pid = 0
        return status, seconds


@dataclass
class Bench:
    """A kind of client, its vendor, and what was counted."""

    kind: str
    forker: Forker
    proxy: TroubledProxy
    stranger: Stranger
    device: dict[str, JSON]
    payload: dict[str, JSON]
    folder: Path
    states: Counter[str] = field(default_factory=Counter)
    victims: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    #: beginnings of the notes of jobs that failed
    notes: Counter[str] = field(default_factory=Counter)
    figures: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def worst(self, name: str, value: float) -> None:
        self.figures[name] = max(self.figures.get(name, 0.0), value)

    def count(self, name: str) -> None:
        self.figures[name] = self.figures.get(name, 0) + 1


class Sequence:
    """One random sequence.

    :param number: tells its jobs from those of others
    """

    def __init__(self, bench: Bench, front: Front, number: int, seed: int) -> None:
        self.bench, self.front, self.number = bench, front, number
        self.draws = random.Random(f"{seed}/{bench.kind}/{number}")
        self.leases: dict[str, str] = {}
        self.jobs: dict[str, str] = {}
        self.left = [*USERS, VICTIM]
        self.draws.shuffle(self.left)
        if self.draws.random() < 0.5:  # often the first, which the others wait for
            self.left.sort(key=lambda user: user == VICTIM)
        self.done: list[str] = []
        self._steps: Steps = (
            *(self.trouble, self.trouble, self.trouble, self.heal),
            *(self.submit, self.submit, self.submit),
            *(self.trouble_victim, self.trouble_victim, self.trouble_victim),
            *(self.cancel, self.end_lease, self.kill),
        )

    def run(self) -> None:
        """Run it, and check it."""
        front = self.front
        try:
            for user in self.left:
                lease = front.answered(user, "POST", "/v1/leases", {"job": "trouble"})
                self.leases[user] = str(lease["id"])
            self.submit()
            for _ in range(self.draws.randint(5, 10)):
                self.draws.choice(self._steps)()
                time.sleep(self.draws.uniform(0, 0.5))
            while self.left:
                self.submit()
            self.settle()
        finally:
            self.bench.proxy.heal()
        for user, lease_id in self.leases.items():
            path, ended = f"/v1/leases/{lease_id}", (200, 204, 404, 503)
            front.answered(user, "DELETE", path, statuses=ended)
        front.measure()
        self.bench.worst("peak_megabytes", front.peak / MEGABYTE)
        heard = len(self.bench.stranger.heard)
        assert not heard, f"{heard} requests have reached the stranger"
        assert front.peak < MOST_BYTES, f"{front.peak / MEGABYTE:.0f} MB"

    # what happens

    def note(self, *what: str) -> None:
        self.done.append(" ".join(what))

    def trouble(self) -> None:
        kind = self.draws.choice(KINDS)
        method = self.draws.choice(["", "", "", "GET", "POST"])
        times = self.draws.choice([None, None, 2, 5])
        self.note(kind, method, str(times))
        self.bench.proxy.fault(kind, method=method, times=times)
        self.bench.faults[kind] += 1

    def trouble_victim(self) -> None:
        """Disturb the requests about the job of one user, for good."""
        if VICTIM not in self.jobs:
            return
        try:
            job = until(self.device_job, "it is at the vendor", 1.0)
        except TimeoutError:
            return
        kind = self.draws.choice(KINDS)
        self.note("of the victim:", kind)
        self.bench.proxy.fault(kind, about=job)
        self.bench.faults[kind] += 1

    def device_job(self) -> str | None:
        """Find the id of the job at the vendor."""
        file = self.front.folder / "state/service.sqlite"
        query = "SELECT device_job FROM jobs WHERE id = ? AND device_job IS NOT NULL"
        with (
            suppress(sqlite3.Error),
            closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as db,
        ):
            found = db.execute(query, (self.jobs[VICTIM],)).fetchone()
            return None if found is None else str(found[0])
        return None

    def heal(self) -> None:
        self.note("heal")
        self.bench.proxy.heal(all_but_some=True)

    def submit(self) -> None:
        if not self.left:
            return
        user = self.left.pop()
        body = {**self.bench.payload, "idempotency_key": str(self.number)}
        job = self.front.answered(user, "POST", "/v1/jobs", body, self.leases[user])
        self.jobs[user] = str(job["id"])
        self.note("submit of", user)

    def cancel(self) -> None:
        if (job := self.jobs.get(VICTIM)) is not None:
            self.note("cancel")
            self.front.answered(
                VICTIM, "DELETE", f"/v1/jobs/{job}", statuses=(200, 503)
            )

    def end_lease(self) -> None:
        if VICTIM in self.jobs:
            self.note("end of the lease")
            path = f"/v1/leases/{self.leases[VICTIM]}"
            self.front.answered(VICTIM, "DELETE", path, statuses=(200, 204, 404, 503))

    def kill(self) -> None:
        if self.draws.random() < 0.85:  # starts take long
            return
        self.note("kill")
        self.bench.count("kills")
        self.front.end(signal.SIGKILL)
        self.front.start()

    # what must come of it

    def settle(self) -> None:
        """Wait for the ends of all jobs, with trouble for one of them only."""
        self.bench.proxy.heal(all_but_some=True)
        self.note("settle")
        begin = time.monotonic()
        for user in USERS:
            self.bench.states[self.over(user)] += 1
        self.bench.worst("others_seconds", time.monotonic() - begin)
        begin = time.monotonic()
        self.front.answered(
            VICTIM, "DELETE", f"/v1/jobs/{self.jobs[VICTIM]}", statuses=(200, 409, 503)
        )
        self.bench.victims[self.over(VICTIM)] += 1
        self.bench.worst("victim_seconds", time.monotonic() - begin)

    def over(self, user: str) -> str:
        def state() -> str | None:
            path = f"/v1/jobs/{self.jobs[user]}?wait=5"
            job = self.front.answered(user, "GET", path)
            if job["state"] == "Failed":
                note = re.sub(r"[\da-f-]{8,}|\d+", "#", str(job["note"]))
                self.bench.notes[note[:90]] += 1
            return str(job["state"]) if job["state"] in OVER else None

        return until(state, f"the job of {user} is over", END_SECONDS)


Steps: TypeAlias = tuple[Callable[[], None], ...]


def stop(bench: Bench, front: Front, draws: random.Random) -> None:
    """Stop a service, often amid a fault."""
    done = "no fault"
    if draws.random() < 0.7:
        bench.proxy.fault(done := draws.choice(KINDS))
        time.sleep(draws.uniform(0, 1))
    status, seconds = front.end(signal.SIGTERM)
    bench.proxy.heal()
    bench.count("stops")
    bench.worst("stop_seconds", seconds)
    bench.worst("peak_megabytes", front.peak / MEGABYTE)
    assert seconds < REST_SECONDS, f"SIGTERM: {seconds:.1f} s, {done}"
    assert status == 0, f"SIGTERM: status {status}, {done}"


@contextmanager
def vendor(kind: str, folder: Path, socket: Path | None) -> Iterator[str]:
    """Run the vendor of a kind of client; its URL."""
    if kind == "acme":
        with VendorProcess(folder / "acme") as acme:
            acme.site()
            acme.set(setup=0.3e6)
            yield acme.url
        return
    auth = ["--auth", "token", "--tokens", str(folder / "tokens.yml")]
    if socket is not None:
        auth = ["--auth", "munge", "--munge-socket", str(socket)]
    config: dict[str, JSON] = {
        "leases": {"idle_seconds": 60},
        "limits": {"requests_per_second": 1000},
    }
    (folder / "vendor.yml").write_text(json.dumps(config))
    words = [
        *(
            "serve",
            "--config",
            str(folder / "vendor.yml"),
            "--port",
            "0",
            "--name",
            NAME,
        ),
        *("--vqpus", "100", "--until-eof", "--log", "error"),
        *(*VENDORS[kind], *auth),
    ]
    code = "import sys; from sf_quantum.cli import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    ) as process:
        assert process.stdout
        try:
            yield str(json.loads(process.stdout.readline())["url"])
        finally:
            process.kill()


def configured(kind: str, folder: Path, url: str) -> dict[str, JSON]:
    """Make the device of the service in front, and the file that it names."""
    token = folder / "vendor"
    config: dict[str, JSON] = {"url": url, "tokenFile": str(token)}
    variables: dict[str, JSON] = {}
    match kind:
        case "dwave":
            config |= {"url": f"{url}/sapi/v2", "resource": NAME}
        case "acme":
            config = {"url": url, "keyFile": str(folder / "acme/acme.key")}
        case "iqm-server":
            variables = {"QRMI_IQM_ISA_ENDPOINT": url}
            variables["QRMI_IQM_ISA_TOKEN"] = token.read_text().strip()
        case "pasqal-local":
            variables = {"QRMI_WARDEN_URL": url}
    if variables:
        entry: JSON = {"name": NAME, "type": kind, "environment": variables}
        file = folder / "qrmi_config.json"
        file.write_text(json.dumps({"resources": [entry]}))
        file.chmod(0o600)
        config = {"qrmiConfig": str(file)}
    return {
        **{"type": "qpu", "qpu": kind, "name": NAME, "config": config},
        **{"refresh_seconds": 0.2, "poll_seconds": 0.1, "late_seconds": 0.3},
        **{"give_up_seconds": 2.0, "idle_seconds": 5.0},
    }


def payload(kind: str, url: str, token: str) -> dict[str, JSON]:
    """Make a job of the kind that the vendor takes."""
    reads: JSON = {"num_reads": 5}
    if kind == "iqm-server":
        return {"circuit": CIRCUIT, "parameters": reads}
    if kind == "pasqal-local":
        text = (ROOT / "tests/support/data/sequence.json").read_text()
        return {"sequence": text, "parameters": reads}
    if kind == "dwave":
        # over qubits, so that no embedding is searched for
        headers = {"Authorization": f"Bearer {token}"}
        graph = Client(url, headers).request("GET", "/v1/device/topology").json()
        pair: list[int] = graph["couplers"][0]  # type: ignore[index,assignment]
        bqm = document(pair, [1.0, 1.0], [(0, 1)], [-1.0], "SPIN")
        return {"problem": bqm, "parameters": reads}
    return {"problem": example_bqm(), "parameters": reads}


def warm_up(
    url: str, body: Mapping[str, JSON], token: str, socket: Path | None
) -> None:
    """Run a job, since the first one takes long: its process imports much."""

    def ask(method: str, path: str, body: Mapping[str, JSON], lease: str) -> Response:
        headers = {"Authorization": f"Bearer {token}"}
        if socket is not None:
            headers = {"X-Munge-Cred": munge.encode(str(socket))}
        if lease:
            headers["X-SFQ-Lease"] = lease
        return Client(url, headers).request(method, path, body, timeout_seconds=300)

    job = {**body, "idempotency_key": "first"}

    # on a machine that does much else, its check may take too long
    def ran() -> bool:
        lease = str(ask("POST", "/v1/leases", {"job": "warm up"}, "").json()["id"])
        told = ask("POST", "/v1/jobs?wait=60", job, lease).json()
        ask("DELETE", f"/v1/leases/{lease}", {}, "")
        return told.get("state") == "Completed"

    until(ran, "the vendor has run a job", 900.0)


def give_tokens(folder: Path) -> None:
    """Write a token into a file for each user of both services."""
    for user in (*USERS, VICTIM, "vendor"):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            assert sfq(["token", user, "--tokens", str(folder / "tokens.yml")]) == 0
        (folder / user).write_text(output.getvalue())
        (folder / user).chmod(0o600)


@contextmanager
def munged(folder: Path) -> Iterator[Path]:
    """Run a MUNGE daemon; its socket."""
    own = folder / "munge"
    own.mkdir(0o755)
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    path = "/usr/sbin:/usr/bin:/bin"
    with subprocess.Popen(
        munged_command(own, key), env={"PATH": path}, stderr=subprocess.DEVNULL
    ) as process:
        try:
            until((own / "s").exists, "munged listens")
            yield own / "s"
        finally:
            process.terminate()


# QRMI's client finds the daemon at the usual place: with a mount of its own
OWN_SOCKET = (
    "mount -t tmpfs none /run && mkdir /run/munge && "
    'ln -s "$0" /run/munge/munge.socket.2 && exec "$@"'
)
NAME = "machine"
MODULES: Mapping[str, tuple[str, ...]] = {
    "dwave": (
        "dwave.system",
        "sf_quantum.qpu.vendors.dwave",
        "sf_quantum.qpu.vendors.embedding",
    ),
    "iqm-server": ("qrmi", "sf_quantum.qpu.vendors.iqm"),
    "pasqal-local": ("qrmi", "sf_quantum.qpu.vendors.qrmi", "pulser"),
}


@contextmanager
def bench(kind: str, folder: Path) -> Iterator[Bench]:
    """Set everything up for a kind of client."""
    with ExitStack() as stack:
        give_tokens(folder)
        socket, prefix = None, list[str]()
        if kind == "pasqal-local":
            socket = stack.enter_context(munged(folder))
            prefix = ["unshare", "--mount", "sh", "-c", OWN_SOCKET, str(socket)]
        url = stack.enter_context(vendor(kind, folder, socket))
        stranger = stack.enter_context(Stranger())
        proxy = stack.enter_context(TroubledProxy(url, stranger.url))
        environment = (
            {"PYTHONPATH": str(folder / "acme/site")} if kind == "acme" else {}
        )
        environment["DWAVE_CACHE_HOME"] = str(folder / "cache")
        forker = Forker(MODULES.get(kind, ()), environment, prefix)
        stack.callback(forker.close)
        device = configured(kind, folder, proxy.url)
        token = (folder / "vendor").read_text().strip()
        body = payload(kind, url, token)
        if kind != "acme":
            warm_up(url, body, token, socket)
        yield Bench(kind, forker, proxy, stranger, device, body, folder)


def run(kind: str, sequences: int, seed: int, seconds: float, each: int) -> Bench:
    """Run sequences, also after one that has failed.

    :param seconds: after which no other one is begun
    :param each: number of sequences after which a service is stopped and the next started
    """
    begin, draws = time.monotonic(), random.Random(seed)
    # a short path: a socket's has at most 107 bytes
    with (
        tempfile.TemporaryDirectory(prefix="sfq-") as folder,
        bench(kind, Path(folder)) as known,
    ):
        own = Path(folder) / "front"
        own.mkdir()
        config: dict[str, JSON] = {"device": known.device, "vqpus": 4}
        (own / "service.yml").write_text(json.dumps(config))
        front = Front(known.forker, own)
        try:
            for number in range(sequences):
                if time.monotonic() > begin + seconds:
                    break
                if not front.pid:
                    front.start()
                _checked(known, Sequence(known, front, number, seed))
                # one that has failed has ended the service
                if front.pid and (number + 1) % each == 0:
                    _stopped(known, front, draws)
            if front.pid:
                _stopped(known, front, draws)
        finally:
            if front.pid:
                front.end(signal.SIGKILL)
        known.figures["befallen"] = sum(known.proxy.befell.values())
        known.figures["kinds_of_faults"] = sum(
            1 for times in known.proxy.befell.values() if times
        )
        known.figures["stranger_heard"] = len(known.stranger.heard)
    known.figures["seconds"] = round(time.monotonic() - begin, 1)
    return known


def _checked(known: Bench, sequence: Sequence) -> None:
    known.count("sequences")
    try:
        sequence.run()
    except (AssertionError, TimeoutError) as error:
        _failed(known, sequence.front, f"{sequence.number}: {error}: {sequence.done}")
        sequence.front.end(signal.SIGKILL)


def _stopped(known: Bench, front: Front, draws: random.Random) -> None:
    try:
        stop(known, front, draws)
    except AssertionError as error:
        _failed(known, front, str(error))


def _failed(known: Bench, front: Front, text: str) -> None:
    known.failures.append(text)
    shown = (front.folder / "log").read_text()[-5000:]
    print(f"{known.kind} {text}\n{shown}", file=sys.stderr, flush=True)


def main() -> None:
    """Print the figures, as lines of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=[*VENDORS], action="append")
    parser.add_argument("--sequences", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--each", type=int, default=10)
    args = parser.parse_args()
    for kind in args.kind or VENDORS:
        known = run(kind, args.sequences, args.seed, args.seconds, args.each)
        figures = {name: round(value, 1) for name, value in known.figures.items()}
        figures |= {"failures": len(known.failures)}
        about = {"others": known.states, "victims": known.victims, "notes": known.notes}
        print(json.dumps({"kind": kind, **figures, **about}), flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
