"""The programs of examples/sdks whose SDKs are installed here, under a lease.

The others, and the workflow around all of them, are run by tests/benchmarks/sdks.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sf_quantum.cli import main
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support import forking
from tests.support.folders import EXAMPLES
from tests.support.service import running_service
from tests.support.warden_service import SFQ

EXAMPLE = EXAMPLES / "sdks"
# a mount of its own, where MUNGE's default socket is the tests' own
PULSER_BY_QRMI = """
from pulser import AnalogDevice, Pulse, QPUBackend, Register, Sequence
from qrmi.pulser import PulserQRMIConnection

atoms = Register({"a": (0.0, 0.0), "b": (30.0, 0.0)})
sequence = Sequence(atoms.with_automatic_layout(AnalogDevice), AnalogDevice)
sequence.declare_channel("global", "rydberg_global")
sequence.add(Pulse.ConstantPulse(1000, 3.14159, 0.0, 0.0), "global")
backend = QPUBackend(sequence, PulserQRMIConnection())
(result,) = backend.run([{"runs": 30}], wait=True).results
print(max(result.final_bitstrings, key=result.final_bitstrings.get))
"""
pytestmark = [pytest.mark.process, pytest.mark.devices("sfq")]


@pytest.mark.parametrize(
    ("program", "needs", "technology", "qubits", "near"),
    [
        # a depth of two has -4.735 at best, and 15 steps do not find quite that
        ("ising_qiskit", "qiskit", "superconducting", 20, 0.25),
        # 2,000 shots, of a state that is not quite the ground state
        ("ising_pulser", "pulser", "neutral-atom", 10, 0.2),
        ("ising_ocean", "dwave.system", "annealer", 500, 0.01),
    ],
)
def test_energies(
    program: str,
    needs: str,
    technology: str,
    qubits: int,
    near: float,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip(needs, reason="the SDK is not installed")
    device = EmulatedDevice(
        technology=technology, qubits=qubits, time_scale=0.0, noise=0.0, seed=1
    )
    with running_service(device) as service:
        words = [forking.python(), str(EXAMPLE / f"{program}.py")]
        assert main(["lease", "--url", service.url, "--clients", "--", *words]) == 0
        job, *_ = service.queue.store.jobs.latest()
        assert job.final
    told = re.fullmatch(r"energy (\S+), exact (\S+)\n", capfd.readouterr().out)
    assert told is not None
    assert float(told[1]) == pytest.approx(float(told[2]), abs=near)


@pytest.mark.parametrize(("vqpus", "code"), [(1, 2), (2, 0)])
def test_a_client_does_not_wait_for_the_lease_that_its_job_holds(
    vqpus: int,
    code: int,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running_service(vqpus=vqpus, tcp=True) as service:
        monkeypatch.setenv("DWAVE_API_ENDPOINT", f"{service.url}/sapi/v2")
        assert main(["lease", "--url", service.url, "--", "echo", "ran"]) == code
    told = capfd.readouterr()
    assert told.out == ("" if code else "ran\n")
    expected = (
        "sfq lease: DWAVE_API_ENDPOINT is the service of QPU 'qpu', whose only lease is "
        "this job's own: the client does not know it, and would wait for its end; "
        "add --clients, and leave the variable to it\n"
    )
    assert told.err == (expected if code else "")


def test_pulser_by_stock_qrmi(alone: list[str], tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PULSER_BY_QRMI)
    device = EmulatedDevice(technology="neutral-atom", qubits=10, time_scale=0.0)
    with running_service(device) as service:
        lease = ["lease", "--url", service.url, "--clients", "--"]
        ran = subprocess.run(
            [*alone, *SFQ, *lease, sys.executable, str(program)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        assert ran.stdout == "11\n"
        (job,) = service.queue.store.jobs.latest()
        (held,) = json.loads(service.ask("GET", "/v1/leases?closed=true").body)
        assert job.lease == held["id"]
