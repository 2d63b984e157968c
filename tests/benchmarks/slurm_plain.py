"""Plain sbatch scripts with Ocean, Qiskit or Pulser inside, with the QPUs closed half of the time.

    python -m tests.benchmarks.slurm_plain [--jobs 50]

Needs root, whose jobs are those of three users. On a lab with the plugins of
deployments/slurm, and a QPU of each technology, the users submit their scripts. The
program in each of them leaves its QPU if that closes under it, and Slurm queues the job
again. Printed are how many jobs succeeded, the node-seconds of jobs that got their nodes
while their QPU was closed, and what Slurm and the QPUs' services say that each account has
used.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sf_quantum.files import JSON, listing, mapping
from sf_quantum.protocol.values import number
from sf_quantum.qpu.sfq.credentials import Credentials
from sf_quantum.qpu.sfq.service_client import ServiceClient
from tests.lab import Lab, running
from tests.support.lab_conf import Options
from tests.support.lab_jobcomp import Completed
from tests.support.service_process import until_ready
from tests.support.waiting import until

USERS: Mapping[str, str] = {"bin": "physics", "sys": "physics", "games": "chemistry"}
# both longer than a job takes
OPEN_SECONDS = CLOSED_SECONDS = 45.0
LIMIT_SECONDS = 1200.0
BIN = Path(sys.executable).parent
LEASES = 2

OCEAN = """
from dwave.system import DWaveSampler

sampler = DWaveSampler()
a, b = sampler.edgelist[0]
samples = sampler.sample_ising({a: -1.0}, {(a, b): 1.0}, num_reads=100)
assert samples.first.energy == -2.0
"""
QISKIT = """
from qiskit import QuantumCircuit, transpile

from sf_quantum import qpu
from sf_quantum.qpu.environment import leased

circuit = QuantumCircuit(2)
circuit.h(0)
circuit.cx(0, 1)
circuit.measure_all()
backend = leased().backend()
counts = backend.run(transpile(circuit, backend), shots=1000).result().get_counts()
assert counts["00"] + counts["11"] > 800
"""
PULSER = """
from pulser import AnalogDevice, Pulse, Register, Sequence

from sf_quantum import qpu

atoms = Register.rectangle(1, 2, spacing=5, prefix="q").with_automatic_layout(AnalogDevice)
sequence = Sequence(atoms, AnalogDevice)
sequence.declare_channel("global", "rydberg_global")
sequence.add(Pulse.ConstantPulse(400, 5.0, 0.0, 0.0), "global")
backend = leased().pulser_backend(sequence)
(result,) = backend.run([{"runs": 100}], wait=True).results
assert sum(result.final_bitstrings.values()) == 100
"""


@dataclass(frozen=True)
class Kind:
    """A QPU, and the program that uses it.

    :param clients: whether the program reaches the QPU by its SDK's own client
    """

    technology: str
    program: str
    clients: bool = False
    device: Mapping[str, JSON] = field(default_factory=dict)


KINDS: Mapping[str, Kind] = {
    "ocean": Kind("annealer", OCEAN, clients=True),
    "qiskit": Kind("superconducting", QISKIT, device={"qubits": 5}),
    "pulser": Kind("neutral-atom", PULSER, device={"qubits": 10}),
}


@dataclass(frozen=True)
class Closure:
    """A time in which no QPU was open, in seconds since the epoch."""

    began: float
    ended: float


@contextmanager
def serving(lab: Lab, folder: Path) -> Iterator[dict[str, ServiceClient]]:
    """Run a service for each QPU, which knows its clients by MUNGE."""
    clients = {}
    munge = str(lab.munge_socket)
    with ExitStack() as stack:
        for name, kind in KINDS.items():
            config: dict[str, JSON] = {
                "auth": {"mode": "munge", "munge": munge},
                "vqpus": LEASES,
                "device": {
                    "technology": kind.technology,
                    "time_scale": 0.0,
                    "name": name,
                    **kind.device,
                },
            }
            file = folder / f"{name}.yml"
            file.write_text(json.dumps(config))
            socket = folder / f"{name}.sock"
            words = ["serve", "--config", str(file), "--socket", str(socket)]
            words += ["--state", str(folder / f"{name}.state")]
            process = stack.enter_context(
                subprocess.Popen(
                    [str(BIN / "sfq"), *words],
                    env={**environment(lab)},
                    stdout=(folder / f"{name}.log").open("w"),
                    stderr=subprocess.STDOUT,
                )
            )
            stack.callback(process.terminate)
            until(socket.exists, f"the service of {name}")
            socket.chmod(0o666)
            until_ready(f"unix:{socket}")
            credentials = Credentials(munge=munge)
            clients[name] = ServiceClient(f"unix:{socket}", name, credentials)
        yield clients


def environment(lab: Lab) -> dict[str, str]:
    """The environment of commands that ask this lab's Slurm."""
    return {"PATH": f"{BIN}:/usr/sbin:/usr/bin:/sbin:/bin", **lab.environment}


def define(file: Path, folder: Path, munge: str) -> None:
    """Write the site's QPUs."""
    resources: list[JSON] = [
        {
            "name": name,
            "type": "sfq",
            "environment": {
                "SFQ_URL": f"unix:{folder}/{name}.sock",
                "SFQ_MUNGE": munge,
            },
        }
        for name in KINDS
    ]
    file.write_text(json.dumps({"resources": resources}))


def submit(lab: Lab, folder: Path, jobs: int) -> list[int]:
    """Submit the scripts, of the users and the kinds in turn."""
    for name, kind in KINDS.items():
        program = folder / f"with_{name}.py"
        program.write_text(kind.program)
        script = folder / f"{name}.sh"
        clients = "--clients " if kind.clients else ""
        script.write_text(
            "#!/bin/sh -e\n"
            "#SBATCH --partition=quantum --time=10 --output=%j.out\n"
            f"#SBATCH --qpu={name} --qpu-seconds=600 --qpu-shots=1000\n"
            f"date +%s.%N >>{folder}/began/$SLURM_JOB_ID\n"
            f"export PATH={BIN}:$PATH HOME=$PWD\n"
            f"sfq lease --held --exit-if-offline {clients}-- python {program}\n"
        )
    names, users = [*KINDS], [*USERS]
    ids = []
    for index in range(jobs):
        user = users[index // len(names) % len(users)]
        script = folder / f"{names[index % len(names)]}.sh"
        words = (f"--uid={user}", f"--chdir={folder / user}", str(script))
        ids.append(lab.submit(*words))
    return ids


def close_and_open(
    lab: Lab, clients: Mapping[str, ServiceClient], jobs: Sequence[int]
) -> list[Closure]:
    """Close all QPUs and open them again in turn, until all jobs have ended."""
    closures = []
    deadline = time.monotonic() + LIMIT_SECONDS
    while set(jobs) & set(lab.jobs()) and time.monotonic() < deadline:
        for client in clients.values():
            client.send("POST", "/v1/device/close", {"message": "calibration"})
        began = time.time()
        time.sleep(CLOSED_SECONDS)
        closures.append(Closure(began, time.time()))
        for client in clients.values():
            client.send("POST", "/v1/device/open", {})
        time.sleep(OPEN_SECONDS)
    return closures


def while_closed(
    began: float, nodes_from: float, ended: float, closures: Sequence[Closure]
) -> float:
    """The seconds for which a job had its node during a closure, if it got it then.

    :param began: when its script began
    :param nodes_from: when it got its node, in whole seconds
    """
    return sum(
        min(ended, closure.ended) - nodes_from
        for closure in closures
        if closure.began <= nodes_from and began < closure.ended
    )


def script_began(folder: Path, run: Completed) -> float:
    """When the script of a run began; if it never did, when the run ended."""
    file = folder / "began" / str(run.id)
    times = map(float, file.read_text().split() if file.exists() else [])
    return next((at for at in times if run.started <= at <= run.ended + 1), run.ended)


def accounted(lab: Lab, jobs: Sequence[int]) -> dict[tuple[str, str], float]:
    """What Slurm says that each account has used of each QPU."""
    ids = ",".join(map(str, jobs))
    # with the former runs of those that were queued again
    show = ("sacct", "-D", "-X", "-n", "-P", "-a", "-j", ids)
    columns = ("-o", "JobID,Account,AdminComment")

    def comments() -> list[tuple[str, dict[str, str]]] | None:
        rows = [line.split("|", 2) for line in lab.output(*show, *columns).splitlines()]
        rows = [row for row in rows if "qpu_seconds=" in row[2]]
        found = [
            (account, dict(word.split("=", 1) for word in comment.split()))
            for _, account, comment in rows
        ]
        return found if {int(row[0]) for row in rows} == {*jobs} else None

    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    for account, figures in until(comments, "an account of each job"):
        sums[figures["resource_id"], account] += float(figures["qpu_seconds"])
    return dict(sums)


def used(lab: Lab, config: Path) -> dict[tuple[str, str], float]:
    """The same as ``sfq usage`` says it."""
    sums = {}
    for name in KINDS:
        words = ["usage", "--by", "slurm-account", "--json", "--qpu", name]
        told = subprocess.run(
            [BIN / "sfq", *words, "--qrmi-config", config],
            env=environment(lab),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        for row in map(mapping, listing(json.loads(told.stdout)["rows"])):
            account = str(row["slurm_account"])
            sums[name, account] = number(row["qpu_seconds"]) or 0.0
    return sums


def main() -> None:
    """Run it, and exit with 1 if something is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sfq-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        for name in (*USERS, "began"):
            (folder / name).mkdir()
            (folder / name).chmod(0o777)
        config = folder / "qrmi_config.json"
        define(config, folder, "")
        options = Options(
            nodes=1, cpus=16, qpus=LEASES, site=True, qrmi_config=str(config)
        )
        with running(folder / "lab", options) as lab, ExitStack() as stack:
            define(config, folder, str(lab.munge_socket))
            for user, account in USERS.items():
                add = ("sacctmgr", "-i", "add", "user", user, f"account={account}")
                lab.output(*add)
            clients = stack.enter_context(serving(lab, folder))
            began = time.monotonic()
            jobs = submit(lab, folder, arguments.jobs)
            closures = close_and_open(lab, clients, jobs)
            seconds = time.monotonic() - began
            sys.exit(report(lab, folder, jobs, closures, seconds, config))


def report(
    lab: Lab,
    folder: Path,
    jobs: Sequence[int],
    closures: Sequence[Closure],
    seconds: float,
    config: Path,
) -> int:
    """Print the figures; the status is 1 if something is not as it should be."""
    runs = [job for job in lab.jobcomp() if job.id in jobs]
    last = {job.id: job for job in runs}
    states = Counter(job.state for job in last.values())
    for job in last.values():
        if job.state != "COMPLETED":
            said = [file.read_text() for file in folder.glob(f"*/{job.id}.out")]
            print(f"job {job.id}: {job.state}: {''.join(said).splitlines()[-1:]}")
    idle = sum(
        while_closed(script_began(folder, run), run.started, run.ended, closures)
        for run in runs
    )
    closed = sum(closure.ended - closure.began for closure in closures)
    again = len(runs) - len(last)
    print(f"{len(jobs)} jobs of {len(USERS)} users in {seconds:.0f} s: {dict(states)}")
    print(f"runs that Slurm queued again, as their QPU was closed: {again}")
    print(f"closed for {closed:.0f} s in {len(closures)} times")
    print(f"node-seconds of jobs that started while closed: {idle:.0f}")
    slurm, services = accounted(lab, jobs), used(lab, config)
    print("QPU, account: QPU seconds by sacct, by sfq usage")
    for key in sorted(slurm.keys() | services.keys()):
        print(f"{', '.join(key)}: {slurm.get(key, 0):.6f}, {services.get(key, 0):.6f}")
    agree = slurm.keys() == services.keys() and all(
        math.isclose(slurm[key], services[key], abs_tol=1e-6 * len(jobs))
        for key in slurm
    )
    good = agree and not idle and states == {"COMPLETED": len(jobs)}
    return 0 if good else 1


if __name__ == "__main__":
    main()
