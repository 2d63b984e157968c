"""Replays the journals of earlier runs, event by event, for a :class:`JobForecast`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice

from streamflow.core.utils import get_job_step_name

from sf_quantum import journal
from sf_quantum.connectors.slurm.allocation.forecast import JobForecast
from sf_quantum.errors import InputError
from sf_quantum.journal import Journal
from sf_quantum.journal.events import Allocation, Event, Job, Qpu, Slurm, SlurmEvent

# number of latest runs that are replayed
LATEST_RUNS = 5


def earlier_runs(record: Journal) -> list[list[Event]]:
    """Return the events of the latest runs of the StreamFlow file, oldest first; blocks."""
    runs = []
    for path in islice(record.earlier(), LATEST_RUNS):
        with suppress(InputError):  # a corrupt journal
            runs.append(journal.read(path))
    return runs[::-1]


def replay(
    events: list[Event], deployment: str, service: str, forecast: JobForecast
) -> None:
    """Let a forecast observe an earlier run, in the order of the run's events.

    :param service: service whose jobs and allocations the forecast predicts
    """
    of_service = [
        event
        for event in events
        if isinstance(event, SlurmEvent)
        and (event.deployment, event.service) == (deployment, service or None)
    ]
    observed = [
        *_quantum_steps(events, forecast),
        *_jobs(of_service, forecast),
        *_pending(of_service, forecast),
    ]
    for _, observe in sorted(observed, key=lambda item: item[0]):
        observe()
    forecast.stop_counting()


@dataclass
class _QuantumRun:
    """One run of a quantum step, from its first job to its last.

    :param begins: time at which the QPU began each job
    """

    step: str
    started: float
    ended: float
    begins: dict[str, float]


# times of events, each with the call that lets the forecast observe the event
_Observed = Iterator[tuple[float, "partial[None]"]]


def _quantum_steps(events: list[Event], forecast: JobForecast) -> _Observed:
    """Yield the events of quantum steps; a step's overlapping jobs are one run of it."""
    jobs = sorted(_quantum_jobs(events), key=lambda run: run.started)
    runs: dict[str, _QuantumRun] = {}
    finished = []
    for job in jobs:
        run = runs.get(job.step)
        if run is not None and job.started <= run.ended:
            run.ended = max(run.ended, job.ended)
            run.begins |= job.begins
        else:
            runs[job.step] = job
            finished.append(job)
    for run in finished:
        name, start, end = run.step, run.started, run.ended
        yield start, partial(forecast.started, name, start)
        for job_name, at in run.begins.items():
            yield start, partial(forecast.begins, name, job_name, at)
        yield end, partial(forecast.ended, name, end, completed=True)


def _quantum_jobs(events: list[Event]) -> Iterator[_QuantumRun]:
    """Yield the completed jobs of quantum steps: jobs on quantum nodes, or with QPU jobs."""
    on_slurm = set()
    quantum = {
        _allocation(event)
        for event in events
        if isinstance(event, Allocation) and event.quantum
    }
    for event in events:
        if isinstance(event, Slurm):
            on_slurm.add(event.job)
            if _allocation(event) in quantum and event.state == "COMPLETED":
                step, begins = get_job_step_name(event.job), {}
                if event.started is not None:
                    begins[event.job] = event.started
                yield _QuantumRun(step, event.submitted, _end(event), begins)
    yield from (
        run for run in _jobs_with_qpu_jobs(events) if not on_slurm & run.begins.keys()
    )


def _jobs_with_qpu_jobs(events: list[Event]) -> Iterator[_QuantumRun]:
    """Yield the completed jobs that had QPU jobs."""
    leased: dict[str, Qpu] = {}
    running: dict[str, float] = {}
    for event in events:
        match event:
            case Qpu():
                leased.setdefault(event.job, event)
            case Job(status="running"):
                running[event.job] = event.time
            case Job(status="completed", job=name):
                if (first := leased.get(name)) is None or name not in running:
                    continue
                start = running[name] + first.lease_seconds
                begins = {name: start + (first.queued_seconds or 0.0)}
                yield _QuantumRun(get_job_step_name(name), start, event.time, begins)


def _allocation(event: SlurmEvent) -> tuple[str, str]:
    return event.deployment, event.allocation


def _jobs(of_service: list[SlurmEvent], forecast: JobForecast) -> _Observed:
    for event in of_service:
        if isinstance(event, Slurm):
            yield event.submitted, partial(forecast.job_arrived, event.submitted)
            yield _end(event), partial(forecast.job_ended)


def _end(event: Slurm) -> float:
    """Return the end of a job as Slurm reports it, or the time when the driver noticed it."""
    return event.time if event.ended is None else event.ended


def _pending(of_service: list[SlurmEvent], forecast: JobForecast) -> _Observed:
    """Yield how long each allocation was pending."""
    requested: dict[str, float] = {}
    for event in of_service:
        match event:
            case Allocation(status="requested", allocation=allocation):
                requested[allocation] = event.at
            case Allocation(status="granted", at=at, allocation=allocation):
                # Slurm's times may be rounded down to seconds, and then precede the request.
                if (since := requested.pop(allocation, None)) is not None:
                    yield at, partial(forecast.granted, max(0.0, at - since))
