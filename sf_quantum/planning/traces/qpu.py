"""The trace format for QPU jobs: a header and CSV, described in docs/reference/traces.md.

``sfq usage --trace`` writes the format, and ``sfq plan`` reads it.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from sf_quantum.files import replacing
from sf_quantum.planning.traces import bounded_files
from sf_quantum.planning.workloads.quantities import Seconds
from sf_quantum.service.domain.jobs import JobClass
from sf_quantum.service.domain.settings import NotNegative
from sf_quantum.text import csv_cell, one_line, unknown

VERSION = 1
_FIRST = re.compile(r"# sfq-qpu-trace: (\d{1,9})", re.ASCII)
_HEADER = re.compile(r"# ([a-z_]+):\s*(.*)")
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)
_EPOCH = "seconds since 1970-01-01T00:00:00Z"
_RELATIVE = "seconds since the first submission"
# Decimal places of seconds on the service's clock.
_DECIMALS = 6


class QpuJob(NamedTuple):
    """A job that has ended; the fields are the columns, and ``None`` is an empty cell.

    :param shots: number of shots of each circuit, sequence or BQM
    :param submitted: seconds since the epoch or since the first submission, according to the
        header
    :param started: start of the attempt that ended the job
    :param attempts: number of starts, including those of interrupted attempts
    :param qpu_seconds: QPU time of the attempt that ended the job, as billed or
        modelled
    :param device_seconds: time for which this last attempt occupied the device
    :param lost_qpu_seconds: QPU time of the interrupted attempts
    """

    job: str | None
    user: str | None
    project: str | None
    account: str | None
    slurm_job: str | None
    lease: str | None
    job_class: JobClass | None
    kind: str | None
    shots: int | None
    state: str | None
    submitted: NotNegative
    started: NotNegative | None
    ended: NotNegative | None
    queued_seconds: NotNegative | None
    attempts: int | None
    qpu_seconds: NotNegative | None
    device_seconds: Seconds
    lost_qpu_seconds: NotNegative | None


_JOB = TypeAdapter(QpuJob)
_EMPTY: dict[str, str | None] = dict.fromkeys(QpuJob._fields)
_NAMES = ("job", "user", "project", "account", "slurm_job", "lease")
_TIMES = ("submitted", "started", "ended")


@dataclass
class QpuTrace:
    """The jobs of a QPU, in the order of submission.

    :param qpu: name of the QPU; empty in an anonymised trace
    :param technology: technology of the QPU, such as ``annealer``; empty if unknown
    :param anonymised: whether names are numbers, and times begin with the first submission
    :param left_out: number of jobs that were left out on reading, by reason
    :param file: name of the file with the trace
    """

    jobs: list[QpuJob]
    qpu: str = ""
    technology: str = ""
    anonymised: bool = False
    left_out: Counter[str] = field(default_factory=Counter)
    file: str = ""

    def sort(self) -> None:
        """Sort the jobs by submission; jobs of the same time keep their order."""
        self.jobs.sort(key=lambda job: job.submitted)


def anonymised(trace: QpuTrace) -> QpuTrace:
    """Replace names with numbers, and count times from the first submission.

    Each column is numbered in the order of submission; equal names get equal numbers. The
    QPU's name is left out.
    """
    numbers: Mapping[str, dict[str, int]] = {name: {} for name in _NAMES}
    trace.sort()
    first = trace.jobs[0].submitted if trace.jobs else 0.0
    jobs = []
    for job in trace.jobs:
        cells = job._asdict()
        for name, number_of in numbers.items():
            if (name_in_log := cells[name]) is not None:
                cells[name] = str(number_of.setdefault(name_in_log, len(number_of) + 1))
        for name in _TIMES:
            if cells[name] is not None:
                cells[name] = round(cells[name] - first, _DECIMALS)
        jobs.append(QpuJob(**cells))
    return QpuTrace(jobs, technology=trace.technology, anonymised=True)


def write(path: Path, trace: QpuTrace) -> None:
    """Write a trace; an existing file is replaced only when the trace is complete.

    :raises InputError: if the folder is missing or not writable, or the disk is full
    """
    trace.sort()
    with replacing(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        for name, value in _header(trace).items():
            text.write(f"# {name}: {one_line(value)}\n")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(map(csv_cell, job) for job in trace.jobs)
        text.flush()
        text.detach()


def _header(trace: QpuTrace) -> dict[str, str]:
    return {
        "sfq-qpu-trace": str(VERSION),
        "qpu": trace.qpu,
        "technology": trace.technology,
        "times": _RELATIVE if trace.anonymised else _EPOCH,
        "time_zone": "none" if trace.anonymised else "UTC",
        "anonymised": "yes" if trace.anonymised else "no",
        "jobs": str(len(trace.jobs)),
    }


def _column(field_: str) -> str:
    return "class" if field_ == "job_class" else field_


#: fields of a job by column, in the order of the columns
COLUMNS: Mapping[str, str] = {_column(name): name for name in QpuJob._fields}
_REQUIRED = ("submitted", "device_seconds")


def read(path: Path) -> QpuTrace:
    """Read a trace; jobs without device time or submission are left out.

    :raises InputError: if the file cannot be read, has another version or unknown columns,
        or no job is left
    """
    return bounded_files.read(path, "a trace of QPU jobs", parse, errors="strict")


def parse(lines: Iterable[str]) -> QpuTrace:
    """Read the lines of a trace; see :func:`read`.

    :raises ValueError: if the header is wrong
    """
    rows = iter(lines)
    header, fields = _read_header(rows)
    trace = QpuTrace(
        [],
        header.get("qpu", ""),
        header.get("technology", ""),
        header.get("anonymised") == "yes",
    )
    for words in csv.reader(rows):
        job = _job(words, fields)
        if isinstance(job, str):
            trace.left_out[job] += 1
        else:
            trace.jobs.append(job)
    jobs_written, rows_read = (
        header.get("jobs", ""),
        len(trace.jobs) + trace.left_out.total(),
    )
    if (
        _NUMBER.fullmatch(jobs_written)
        and (missing := int(jobs_written) - rows_read) > 0
    ):
        trace.left_out["missing at the end of the file"] += missing
    trace.sort()
    return trace


def _read_header(rows: Iterator[str]) -> tuple[dict[str, str], Sequence[str]]:
    first = next(rows, "").strip()
    version = _FIRST.fullmatch(first)
    if version is None:
        raise ValueError(f"line 1: expected '# sfq-qpu-trace: {VERSION}'")
    if int(version[1]) != VERSION:
        raise ValueError(f"line 1: expected version {VERSION}, not {version[1]}")
    header: dict[str, str] = {}
    for number, line in enumerate(rows, 2):
        if label := _HEADER.fullmatch(line.strip()):
            header[label[1]] = label[2]
        else:
            return header, _fields(line, number)
    raise ValueError("no line with the names of the columns")


def _fields(line: str, number: int) -> Sequence[str]:
    """Read the names of the columns; return the names of the fields."""
    names = line.strip().split(",")
    for name in names:
        if name not in COLUMNS:
            raise ValueError(f"line {number}: {unknown('column', name, [*COLUMNS])}")
    if missing := [name for name in _REQUIRED if name not in names]:
        raise ValueError(f"line {number}: no column {' and no '.join(missing)}")
    if len({*names}) < len(names):
        raise ValueError(f"line {number}: a column is there twice")
    return [COLUMNS[name] for name in names]


def _job(words: Sequence[str], fields: Sequence[str]) -> QpuJob | str:
    """Read a row, or return why the job is left out."""
    if len(words) != len(fields):
        return f"without {len(fields)} columns"
    cells = {name: word or None for name, word in zip(fields, words, strict=True)}
    try:
        job = _JOB.validate_python(_EMPTY | cells)
    except ValidationError as error:
        field_, *_ = error.errors()[0]["loc"]
        return f"with a wrong {_column(str(field_))}"
    return job if job.device_seconds > 0 else "without device time"


@dataclass
class QpuLoad:
    """The jobs that a trace submits to a QPU.

    :param leases: the jobs of each lease; each job without a lease is a list of its own
    :param left_out: number of jobs that were left out, by reason
    :param file: name of the file with the trace
    """

    qpu: str
    leases: Sequence[Sequence[QpuJob]]
    left_out: Counter[str]
    file: str

    def __len__(self) -> int:
        return sum(map(len, self.leases))


def load(trace: QpuTrace, qpu: str, from_seconds: float) -> QpuLoad:
    """Select the jobs of a trace from a time on, in seconds after the first submission."""
    begin = trace.jobs[0].submitted + from_seconds if trace.jobs else 0.0
    alone = itertools.count()
    leases: dict[str | int, list[QpuJob]] = {}
    for job in trace.jobs:
        if (at := job.submitted - begin) >= 0:
            lease = leases.setdefault(job.lease or next(alone), [])
            lease.append(job._replace(submitted=at))
    return QpuLoad(qpu, [*leases.values()], trace.left_out, trace.file)
