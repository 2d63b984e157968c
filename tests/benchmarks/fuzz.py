"""Fuzz the QPU service in all its dialects.

    python -m tests.benchmarks.fuzz [--auth none|token] [--examples 200] [--seed 1]
        [--technology annealer] [--sequences 100] [--minutes 0]
    python -m tests.benchmarks.fuzz --auth munge --munge-socket PATH

A separate service is started. Each operation gets as many valid requests as invalid
ones, by its description, from a stranger, a user and an admin in turn; half of them
name an existing job and lease and carry a problem that can run, so that they pass the
first checks. No answer may be 5xx (except 503 from a closed QPU), and each must be
described by the document: status, content type and schema. What the document leaves to
vendors (SAPI and IQM's API) has the bodies and links of tests/support/dialects.py, and must not be
5xx. Then sequences of requests follow links from one answer to the next request: leases,
jobs, problems, circuits and what becomes of them. The test suite runs the short form
(tests/service/test_fuzz.py). With MUNGE each request has a fresh credential: of
the user nobody if root runs this, else of the present user as an admin.

With MINUTES, this is repeated with devices of all technologies, with and without tokens,
with a seed of its own each time. Meanwhile another user, in a process of its own, submits
ten jobs per second; the median and the 99th percentile of its latencies are printed.
"""

# schemathesis' classes are generic in types that callers cannot name
# mypy: disable-error-code=type-arg

from __future__ import annotations

import argparse
import getpass
import itertools
import json
import multiprocessing
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import cast

import psutil
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky, Unsatisfiable
from hypothesis.stateful import run_state_machine_as_test
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from sf_quantum.errors import QpuError
from sf_quantum.files import JSON, mapping
from sf_quantum.net import munge
from sf_quantum.net.transport import Client, Response
from sf_quantum.service.device.emulator.device import OPERATIONS
from sf_quantum.service.http.tokens import new_token, token_entry
from tests.support import dialects

# each request may take a lease
VQPUS = 10_000
CHECKED = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
Headers = Mapping[str, str]
# gives the headers of one request
Sender = Callable[[], Headers]
NOBODY = 65534
NAMES = [operation.name for operation in OPERATIONS]
# requests of a sequence
STEPS = 12
PERIOD_SECONDS = 0.1
# of a request, on a machine that may be busy: only its answer counts here
TIMEOUT_SECONDS = 300.0


KIND_NAMES = frozenset(dialects.KINDS.values())


class Refuted(AssertionError):
    """An answer that the document does not allow."""


@dataclass
class Fuzz:
    """A service and its answers.

    :param senders: a stranger, a user and an admin, as far as authentication knows them
    """

    url: str
    senders: list[Sender]
    random: random.Random
    technology: str = "annealer"
    solver: dict[str, JSON] = field(default_factory=dict)
    answers: dict[str, Counter[int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    until: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the time has passed."""
        return self.until is not None and time.monotonic() > self.until

    def ask(self, method: str, path: str, body: dict[str, JSON] | None = None) -> None:
        """Send a request as the admin, and ignore the answer."""
        self._sent(self.senders[-1], method, path, body)

    def __post_init__(self) -> None:
        sender = self.senders[-1]
        listed = self._sent(sender, "GET", "/sapi/v2/solvers/remote").body
        self.solver = next(iter(json.loads(listed)), {})
        self.schema = schemathesis.openapi.from_dict(dialects.document())
        self.schema.config.update(base_url=self.url)

    def sequences(self, examples: int) -> None:
        """Fuzz sequences of requests, which are linked by what answers have."""
        fuzz = self
        base = self.schema.as_state_machine()

        class Machine(base):  # type: ignore[misc,valid-type]
            def before_call(self, case: Case) -> None:
                fuzz.make_runnable(case, 0.8)

            def get_call_kwargs(self, case: Case) -> dict[str, Headers | float]:
                sender = fuzz.random.choice(fuzz.senders[-2:])
                lease = fuzz.lease(sender) if fuzz.random.random() < 0.7 else {}
                return {"headers": {**sender(), **lease}, "timeout": TIMEOUT_SECONDS}

            def validate_response(
                self, response: schemathesis.Response, case: Case, **_: JSON
            ) -> None:
                label = f"sequence: {case.operation.label}"
                counted = fuzz.answers.setdefault(label, Counter())
                fuzz.check(case, response, counted)

        # of these, the first always is the shortest
        limits = settings(
            max_examples=3,
            stateful_step_count=STEPS,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        for _ in range(-(-examples // 2)):
            if self.is_over:
                return
            machine = seed(self.random.getrandbits(32))(Machine)
            try:
                # what is possible depends on the answers: no example is like another
                with suppress(Flaky):
                    run_state_machine_as_test(machine, settings=limits)
            except (Refuted, FailureGroup, OSError, QpuError) as error:
                self.failures.append(f"sequence: {error}")

    def make_runnable(self, case: Case, share: float) -> None:
        """Give some requests what the device can run, and all of them its name."""
        if "qc" in case.path_parameters:
            case.path_parameters["qc"] = "emulator"
            if "job_type" in case.path_parameters:
                case.path_parameters["job_type"] = "circuit"
        if case.path.startswith("/sapi/v2/solvers/") and "name" in case.path_parameters:
            case.path_parameters["name"] = "emulator"
        if self.random.random() < share and case.method == "POST":
            body = dialects.body(case.path, self.technology, self.solver)
            if body is not None:
                case.body = body

    def lease(self, sender: Sender) -> dict[str, str]:
        """Acquire a lease; the headers that name it."""
        id_ = str(self._sent(sender, "POST", "/v1/leases", {}).json().get("id", ""))
        return {"X-SFQ-Lease": id_, "X-Warden-Session": id_} if id_ else {}

    def operations(self, examples: int) -> None:
        """Fuzz every operation."""
        for result in self.schema.get_all_operations():
            if not isinstance(result, Ok):
                raise Refuted(f"the document itself is wrong: {result.err()}")
            operation = result.ok()
            self.answers[operation.label] = Counter()
            if self.is_over:
                return
            for mode in _modes(operation):
                try:
                    self._operation(operation, mode, examples)
                except (Refuted, FailureGroup, OSError, QpuError) as error:
                    self.failures.append(f"{operation.label} ({mode.value}): {error}")

    def _operation(
        self, operation: APIOperation, mode: GenerationMode, examples: int
    ) -> None:
        @seed(self.random.getrandbits(32))
        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def fuzz(case: Case) -> None:
            self.one(case, self.answers[operation.label])

        # nothing is forbidden to a request without parameters
        with suppress(Unsatisfiable):
            fuzz()

    def one(self, case: Case, answers: Counter[int]) -> None:
        """Send one request and check its answer."""
        sender, known = self.random.choice(self.senders), {}
        if self.random.random() < 0.5:
            known = self.known(case)
        response = case.call(headers={**sender(), **known}, timeout=TIMEOUT_SECONDS)
        self.check(case, response, answers)

    def check(
        self, case: Case, response: schemathesis.Response, answers: Counter[int]
    ) -> None:
        """Check an answer, and open the QPU again if it was closed."""
        answers[response.status_code] += 1
        if response.status_code >= 500 and response.status_code != 503:
            raise Refuted(f"{response.status_code}: {case.as_curl_command()}")
        if not case.path.startswith(dialects.VENDORS):
            case.validate_response(response, checks=CHECKED)
        if response.status_code == 503 or case.path.endswith(("/close", "/drain")):
            self.ask("POST", "/v1/device/open", {})
        if case.method == "PATCH":
            self.ask("PATCH", "/v1/device", {"vqpus": VQPUS})

    def known(self, case: Case) -> dict[str, str]:
        """Put existing jobs, leases and problems into a request.

        :returns: the header of a lease
        """
        user = self.senders[1 % len(self.senders)]
        headers = self.lease(user)
        lease = headers.get("X-SFQ-Lease", "")
        body = mapping(dialects.body("/v1/jobs", self.technology, {}))
        submitted = self._sent(user, "POST", "/v1/jobs", body, headers)
        job = submitted.json().get("id")
        self._sent(user, "GET", f"/v1/jobs/{job}?wait=1")
        there = {"job_id": job, "lease_id": lease, "session_id": lease}
        there["name"] = self.random.choice(NAMES)
        for name in case.path_parameters:
            if there.get(name):
                case.path_parameters[name] = there[name]
        self.make_runnable(case, 0.5)
        if isinstance(case.body, dict) and "problem" in case.body:
            for kind in dialects.KINDS.values():
                case.body.pop(kind, None)
            case.body |= {
                name: part for name, part in body.items() if name in KIND_NAMES
            }
        return headers

    def _sent(
        self,
        sender: Sender,
        method: str,
        path: str,
        body: dict[str, JSON] | None = None,
        headers: Headers | None = None,
    ) -> Response:
        return Client(self.url, {**sender(), **(headers or {})}).request(
            method, path, body, timeout_seconds=TIMEOUT_SECONDS
        )


def _modes(operation: APIOperation) -> Iterator[GenerationMode]:
    yield GenerationMode.POSITIVE
    described = operation.definition.raw
    schemas = [parameter["schema"] for parameter in described.get("parameters", ())]
    if "requestBody" in described or not all(map(_is_any_text, schemas)):
        yield GenerationMode.NEGATIVE


def _is_any_text(schema: Mapping[str, JSON]) -> bool:
    """Whether every text is valid, of which hypothesis would try hundreds."""
    options = schema.get("anyOf", [schema])
    return all(
        option.keys() <= {"type", "title", "description"}
        and option.get("type") in ("string", "null")
        for option in cast("list[dict[str, JSON]]", options)
    )


@contextmanager
def service(
    mode: str, folder: Path, socket: str | None, technology: str = "annealer"
) -> Iterator[tuple[str, list[Sender], int]]:
    """Start a service.

    :param socket: of munged
    :returns: its URL, the senders, and the id of its process
    """
    config = folder / "qpu.yml"
    # else mostly the rate limit would be tested
    config.write_text(
        "limits: {requests_per_second: 1000000}\nleases: {wait_seconds: 0.1}\n"
    )
    options = ["--auth", mode, "--time-scale", "0", "--vqpus", f"{VQPUS}"]
    options += ["--config", str(config), "--technology", technology]
    options += [] if technology == "annealer" else ["--qubits", "5"]
    senders: list[Sender] = [dict]
    if mode == "munge":
        with config.open("a") as file:
            file.write(f"auth: {{admins: [{getpass.getuser()}]}}\n")
        options += ["--munge-socket", socket] if socket else []
        senders += _munge(socket)
    if mode == "token":
        tokens = folder / "tokens.yml"
        tokens.touch(0o600)
        made = {name: new_token() for name in ("bea", "ada", "root")}
        entries = [token_entry(n, t, admin=n == "root") for n, t in made.items()]
        tokens.write_text(json.dumps(entries))
        options += ["--tokens", str(tokens)]
        senders += [_bearer(token) for token in made.values()]
    command = ["sfq", "serve", *options, "--until-eof"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        if process.stdout is None or process.stdin is None:
            raise RuntimeError("no pipes")
        try:
            url = str(json.loads(process.stdout.readline())["url"])
            yield url, senders, process.pid
        finally:
            process.stdin.close()
            process.wait(60)


def _bearer(token: str) -> Sender:
    return lambda: {"Authorization": f"Bearer {token}"}


def _munge(socket: str | None) -> list[Sender]:
    def own() -> Headers:
        return {"X-Munge-Cred": munge.encode(socket)}

    def nobodys() -> Headers:
        # the command, since this Python may not be another user's to run
        command = ["munge", "--no-input", f"--socket={socket}"]
        done = subprocess.run(command, user=NOBODY, capture_output=True, check=True)
        return {"X-Munge-Cred": done.stdout.decode().strip()}

    return [nobodys, own] if os.geteuid() == 0 else [own]


def submit_steadily(
    url: str, headers: Headers, technology: str, ended: Connection
) -> None:
    """Submit ten jobs per second until told to end, and send back the latencies."""
    under, latencies = dict[str, str](), list[float]()
    due = time.monotonic()
    while not ended.poll(max(0.0, due - time.monotonic())):
        client = Client(url, {**headers, **under})
        body = mapping(dialects.body("/v1/jobs", technology, {}))
        with suppress(QpuError):
            answer = client.request(
                "POST", "/v1/jobs", body, timeout_seconds=TIMEOUT_SECONDS
            )
            latencies.append(time.monotonic() - due)
            if answer.status == 403:
                id_ = str(client.request("POST", "/v1/leases", {}).json().get("id", ""))
                under = {"X-SFQ-Lease": id_}
        due = max(due + PERIOD_SECONDS, time.monotonic())
    ended.send(latencies)


@contextmanager
def another_user(
    url: str, sender: Sender, technology: str, latencies: list[float]
) -> Iterator[None]:
    """Have another user submit jobs meanwhile.

    :param latencies: in seconds; added to in the end
    """
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(
        target=submit_steadily, args=(url, sender(), technology, theirs)
    )
    process.start()
    try:
        yield
    finally:
        ours.send(None)
        latencies += ours.recv()
        process.join()


def fuzz_once(
    mode: str, technology: str, number: int, args: argparse.Namespace, until: float
) -> tuple[Fuzz, list[float], float]:
    """Fuzz a service of its own; with the latencies of another user, and its memory."""
    latencies = list[float]()
    with (
        tempfile.TemporaryDirectory(prefix="sfq-") as folder,
        service(mode, Path(folder), args.munge_socket, technology) as started,
    ):
        url, senders, pid = started
        other = senders.pop(1) if mode == "token" else senders[0]
        fuzz = Fuzz(url, senders, random.Random(number), technology)
        if args.minutes:
            fuzz.until = until
        beside = another_user(url, other, technology, latencies)
        with beside if args.minutes else nullcontext():
            fuzz.operations(args.examples)
            fuzz.sequences(args.sequences)
        memory = psutil.Process(pid).memory_info().rss / 1e6
    return fuzz, latencies, memory


def main() -> int:
    """Fuzz, and print the answers.

    :returns: 1 if an answer is not allowed
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--auth", choices=["none", "token", "munge"], default="none")
    parser.add_argument("--munge-socket", help="munged's (default: usual)")
    parser.add_argument("--technology", choices=[*dialects.KINDS], default="annealer")
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--sequences", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=secrets.randbits(16))
    args = parser.parse_args()
    until = time.monotonic() + 60 * args.minutes
    each = itertools.cycle(itertools.product(("token", "none"), dialects.KINDS))
    rounds = each if args.minutes else iter([(args.auth, args.technology)])
    answers: dict[str, Counter[int]] = {}
    failures, latencies, memory, number = list[str](), list[float](), 0.0, args.seed
    for mode, technology in rounds:
        fuzz, slow, used = fuzz_once(mode, technology, number, args, until)
        number, memory = number + 1, max(memory, used)
        latencies += slow
        for label, counted in fuzz.answers.items():
            answers[label] = answers.get(label, Counter()) + counted
        failures += fuzz.failures
        if args.minutes:
            _show_round(mode, technology, number, answers, failures, latencies, memory)
        if time.monotonic() > until:
            break
    for label, counts in answers.items():
        counted_text = "  ".join(
            f"{status}: {n}" for status, n in sorted(counts.items())
        )
        print(f"{label:40} {counted_text}")
    total = sum(sum(counts.values()) for counts in answers.values())
    print(f"{total} requests, {len(failures)} failures, seed {args.seed}")
    print(*failures, sep="\n", file=sys.stderr)
    return bool(failures)


def _show_round(
    mode: str,
    technology: str,
    number: int,
    answers: Mapping[str, Counter[int]],
    failures: list[str],
    latencies: list[float],
    memory: float,
) -> None:
    total = sum((counts for counts in answers.values()), Counter[int]())
    errors = sum(n for status, n in total.items() if status >= 500 and status != 503)
    told = f"{sum(total.values()):,} requests, {errors} of 5xx other than 503, "
    told += f"{total[503]} of 503, {len(failures)} failures, {memory:.0f} MB at most"
    if len(latencies) > 1:
        p99 = quantiles(latencies, n=100)[98]
        told += f"; another user: {len(latencies):,} submissions, "
        told += f"p50 {1e3 * median(latencies):.0f} ms, p99 {1e3 * p99:.0f} ms"
    load = os.getloadavg()[0]
    print(f"{number} {mode} {technology}: {told}; load {load:.1f}", flush=True)
    print(*failures[-1:], sep="\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
