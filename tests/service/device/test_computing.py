"""The processes that compute jobs: their limits, and how they end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import psutil
import pytest

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers.problem import document
from sf_quantum.service.device.emulator.computation import Computation
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.runners import ProblemRunner
from sf_quantum.service.device.processes import process_pool
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.device.processes.messages import Request
from sf_quantum.service.device.processes.program import answered
from sf_quantum.service.domain.jobs import Identity, LeaseRequest, Submission
from tests.support.service import example_bqm, running_queue
from tests.support.waiting import until, until_async

pytestmark = pytest.mark.process

SMALL: dict[str, int | None] = {"num_reads": 5, "seed": 1}
ENDLESS: dict[str, int | None] = {"num_reads": 1, "seed": 1, "num_sweeps": 1_000_000}


def dense(variables: int) -> str:
    pairs = [*combinations(range(variables), 2)]
    couplings = [(-1.0) ** number for number, _ in enumerate(pairs)]
    labels: list[JSON] = [*range(variables)]
    linear = [0.5] * variables
    return json.dumps(document(labels, linear, pairs, couplings, "SPIN"))


def run(
    payload: str,
    parameters: dict[str, int | None],
    interrupted: Callable[[], bool] = lambda: False,
    **limits: float,
) -> str:
    computation = Computation(
        payload, parameters, limits=ComputeLimits.model_validate(limits)
    )
    return ProblemRunner().run(computation, interrupted).text


def computing() -> set[psutil.Process]:
    children = psutil.Process().children()
    return {child for child in children if process_pool.MODULE in child.cmdline()}


def only_process() -> psutil.Process:
    """End those that earlier tests have left, and start one."""
    process_pool._processes().end()
    run(json.dumps(example_bqm()), SMALL)
    (process,) = computing()
    return process


def test_as_many_are_kept_as_are_used_at_once() -> None:
    process_pool._processes().end()
    pool = process_pool._processes()
    taken = [pool.take(None) for _ in range(process_pool.MOST_IDLE + 1)]
    for process in taken:
        pool.put_back(process)
    assert len(computing()) == process_pool.MOST_IDLE
    pool.end()


def test_a_payload_goes_to_the_process_that_has_read_it() -> None:
    process_pool._processes().end()
    pool = process_pool._processes()
    first, second = pool.take(1), pool.take(2)
    first.known.append(1)
    second.known.append(2)
    pool.put_back(first)
    pool.put_back(second)
    for about, known in ((1, first), (2, second), (1, first)):
        assert pool.take(about) is known
        pool.put_back(known)
    pool.end()


def test_a_process_is_used_again() -> None:
    run(json.dumps(example_bqm()), SMALL)
    before = computing()
    run(json.dumps(example_bqm()), SMALL)
    assert computing() == before


def test_a_read_of_a_million_sweeps_is_ended_at_once() -> None:
    """Its sampler looks for an interruption only between reads."""
    process = only_process()
    began = process.cpu_times().user

    def works() -> bool:
        return process.cpu_times().user > began + 1

    assert run(dense(300), ENDLESS, works) == "{}"
    assert not process.is_running()
    assert json.loads(run(json.dumps(example_bqm()), SMALL))["num_rows"] > 0


async def test_a_job_is_cancelled_whatever_it_does(tmp_path: Path) -> None:
    who = Identity("ann", admin=False)
    async with running_queue(tmp_path, EmulatedDevice(time_scale=0)) as queue:
        lease = await queue.leases.acquire(who, LeaseRequest())
        content = json.loads(dense(300))
        asked = Submission("problem", content, ENDLESS, "a")
        job, _ = await queue.submit(who, lease.id, asked)
        await until_async(lambda: queue.find(who, job.id).state == "Running")
        await until_async(lambda: any(map(works, computing())), "it computes")
        cancelled = await queue.cancel(who, job.id)
        assert (cancelled.state, cancelled.note) == ("Cancelled", "cancelled")


def works(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.cpu_times().user > 1)


def test_time_has_a_limit() -> None:
    with pytest.raises(InputError, match="needs more than 1 s of CPU time"):
        run(dense(300), ENDLESS, cpu_seconds=1)


def test_a_service_with_lower_limits_computes_within_them() -> None:
    process = only_process()
    process.rlimit(psutil.RLIMIT_AS, (3 << 30, 3 << 30))
    process.rlimit(psutil.RLIMIT_CPU, (200, 200))
    run(json.dumps(example_bqm()), SMALL)
    assert computing() == {process}
    # other tests have other limits
    process.kill()
    process.wait()


def test_memory_has_a_limit() -> None:
    reads: dict[str, int | None] = {"num_reads": 100_000, "seed": 1, "num_sweeps": 1}
    labels: list[JSON] = [*range(5000)]
    payload = json.dumps(document(labels, [1.0] * 5000, [], [], "SPIN"))
    with pytest.raises(InputError, match=r"1 GiB of memory"):
        run(payload, reads, memory_gib=1)
    run(json.dumps(example_bqm()), SMALL)


def test_what_fails_is_told_and_the_process_is_used_again() -> None:
    run(json.dumps(example_bqm()), SMALL)
    before = computing()
    with pytest.raises(InputError, match="ValueError"):
        run("{}", SMALL)
    assert computing() == before


def test_one_that_is_killed_between_jobs_is_replaced() -> None:
    run(json.dumps(example_bqm()), SMALL)
    for process in computing():
        process.kill()
        process.wait()
    run(json.dumps(example_bqm()), SMALL)


@pytest.mark.parametrize(("program", "status"), [("true", 0), ("false", 1)])
def test_a_process_without_an_answer_is_reported(
    monkeypatch: pytest.MonkeyPatch, program: str, status: int
) -> None:
    pool = process_pool._Processes()
    monkeypatch.setattr(process_pool, "_processes", lambda: pool)
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(InputError, match=f"ended with status {status}"):
        run(json.dumps(example_bqm()), SMALL)
    pool.end()


def test_it_ends_with_a_service_that_is_killed() -> None:
    code = (
        "import sys; from tests.service.device.test_computing import *; "
        "run(dense(300), ENDLESS, lambda: print(flush=True) and False)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE
    ) as service:
        assert service.stdout
        service.stdout.readline()
        (process,) = until(lambda: psutil.Process(service.pid).children(), "a process")
        until(lambda: process.cpu_times().user > 1, "it computes")
        service.kill()
    until(lambda: not process.is_running(), "it ends")


def test_one_whose_service_has_died_does_not_begin() -> None:
    lifeline, ours = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", process_pool.MODULE]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=lifeline)
    os.close(lifeline)
    assert done.returncode == 1


def test_an_answer_has_its_info_apart() -> None:
    arguments: dict[str, JSON] = {"kind": "problem", "parameters": {**SMALL}}
    limits = ComputeLimits(memory_gib=1e6, cpu_seconds=10**6).model_dump()
    request = Request("run", arguments, limits)
    answer, text = answered(request, json.dumps(example_bqm()))
    assert answer.error is None
    assert answer.info == {"sampler": "neal", "seed": 1, "reads": 5, "num_sweeps": 100}
    assert "info" not in json.loads(text)
