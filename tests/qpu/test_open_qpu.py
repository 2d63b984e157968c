"""``sf_quantum.open_qpu``: a lease while the block runs, given back on every way out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import dimod
import pytest

import sf_quantum
from sf_quantum.qpu import NoLease
from sf_quantum.qpu.environment import job_environment
from sf_quantum.qpu.opening import check_leasable
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support.service import RunningService, example_bqm, running_service
from tests.support.shaky_qpu import ShakyQpu
from tests.support.waiting import SECONDS


@pytest.fixture(autouse=True)
def no_qpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*os.environ]:
        if name.startswith(("QRMI_", "SLURM_")):
            monkeypatch.delenv(name)


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(EmulatedDevice(time_scale=0)) as running:
        yield running


def purposes(service: RunningService) -> list[str | None]:
    return [lease.job for lease in service.queue.leases.held]


def test_a_qpu_is_held_while_the_block_runs(service: RunningService) -> None:
    problem = dimod.BinaryQuadraticModel.from_serializable(example_bqm())
    with sf_quantum.open_qpu(url=service.url, purpose="a notebook") as leased:
        assert purposes(service) == ["a notebook"]
        samples = leased.sampler().sample(problem, num_reads=50, seed=1)
    assert samples.first.sample == {"a": 1, "b": 0, "c": 1}
    assert purposes(service) == []


def test_an_error_ends_the_lease(service: RunningService) -> None:
    with pytest.raises(ZeroDivisionError), sf_quantum.open_qpu(url=service.url):
        1 / 0  # noqa: B018
    assert purposes(service) == []


def test_a_block_in_itself_loses_no_lease() -> None:
    """The first lease was renewed until the end of the process."""
    with running_service(EmulatedDevice(time_scale=0), vqpus=2) as service:
        opened = sf_quantum.open_qpu(url=service.url)
        with opened, pytest.raises(sf_quantum.InputError, match="open already"):
            opened.__enter__()
        assert purposes(service) == []
        with opened:
            assert len(purposes(service)) == 1
        assert purposes(service) == []


def test_one_program_runs_by_itself_and_under_a_lease(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease of the environment is used, and is not given back."""
    monkeypatch.setenv("annealer_SFQ_URL", service.url)
    with sf_quantum.open_qpu("annealer") as leased:
        assert leased.name == "annealer"
    assert purposes(service) == []
    client = SfqQpu("annealer", service.url)
    variables = job_environment([(client, client.acquire("step"))])
    for variable in variables:
        monkeypatch.setenv(variable, variables[variable])
    for name in (None, "annealer"):
        with sf_quantum.open_qpu(name) as leased:
            assert purposes(service) == ["step"]
            assert isinstance(leased, SfqQpu)
    assert purposes(service) == ["step"]


def test_what_is_wrong_is_said(
    service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        sf_quantum.InputError, match=r"no QPU: .*url=.*from_environment"
    ):
        sf_quantum.open_qpu()
    with pytest.raises(sf_quantum.InputError, match="did you mean 'wait_seconds'"):
        sf_quantum.open_qpu(url=service.url, wait_second=1)  # type: ignore[call-arg]
    with (
        pytest.raises(sf_quantum.InputError, match="class"),
        sf_quantum.open_qpu(url=service.url, class_="urgent"),
    ):
        pass
    with (
        sf_quantum.open_qpu(url=service.url),
        pytest.raises(NoLease, match="held"),
        sf_quantum.open_qpu(url=service.url, wait_seconds=0),
    ):
        pass
    assert purposes(service) == []
    monkeypatch.setenv("QRMI_JOB_QPU_RESOURCES", "a,b")
    for name in "ab":
        monkeypatch.setenv(f"{name}_SFQ_URL", service.url)
    with pytest.raises(sf_quantum.InputError, match="name one of the QPUs a, b"):
        sf_quantum.open_qpu()


def test_bounds_are_refused_where_leases_have_none() -> None:
    check_leasable([ShakyQpu(0)], {"max_shots": None})
    with pytest.raises(sf_quantum.InputError, match=r"type shaky.* max-shots"):
        check_leasable([ShakyQpu(0)], {"max_shots": 5})


def program(service: RunningService, rest: str) -> subprocess.Popen[str]:
    code = f"import sf_quantum, time; opened = sf_quantum.open_qpu(url={service.url!r})"
    return subprocess.Popen(
        [sys.executable, "-c", f"{code}\n{rest}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.process
def test_the_end_of_the_interpreter_ends_the_lease(service: RunningService) -> None:
    """As in a notebook whose kernel is shut down after a cell without ``with``."""
    rest = "leased = opened.__enter__(); print(leased.status().leases)"
    with program(service, rest) as running:
        told = running.communicate(timeout=SECONDS)
    assert told == ("1\n", "")
    assert purposes(service) == []


@pytest.mark.process
def test_ctrl_c_ends_the_lease(service: RunningService) -> None:
    held = "with opened: print('held', flush=True); time.sleep(1000)"
    with program(service, held) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "held\n"
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=SECONDS)
    assert "KeyboardInterrupt" in errors
    assert purposes(service) == []


@pytest.mark.process
def test_ctrl_c_ends_the_wait_for_a_lease(service: RunningService) -> None:
    client = SfqQpu("qpu", service.url)
    token = client.acquire("another")
    with program(service, "with opened: time.sleep(1000)") as running:
        assert running.stderr is not None
        assert running.stderr.readline().startswith("waiting for a lease of QPU qpu")
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=SECONDS)
    assert "KeyboardInterrupt" in errors
    client.release(token)
    assert purposes(service) == []
