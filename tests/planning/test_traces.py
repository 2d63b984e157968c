"""Traces of jobs on nodes and on QPUs, and usage reports: what is read, and what is left out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.planning import experiment
from sf_quantum.planning.simulation.strategies import PerStep
from sf_quantum.planning.traces import bounded_files, qpu, sacct, swf, usage
from sf_quantum.planning.traces.node_trace import NodeTrace
from sf_quantum.planning.traces.qpu import QpuJob, QpuTrace
from sf_quantum.planning.workloads import reading
from sf_quantum.validation import ValidationErrors

SWF = """\
; Version: 2.2
; MaxNodes: 8
; MaxProcs: 16
; Note: any text; MaxNodes: 3
1 0 5 100 4 -1 -1 4 200 -1 1 1 1 -1 1 -1 -1 -1
3 20 5 50 -1 -1 -1 3 -1 -1 1 1 1 -1 1 -1 -1 -1
2 10 5 60 16 -1 -1 16 30 -1 1 1 1 -1 1 -1 -1 -1
4 30 5 -1 2 -1 -1 2 60 -1 0 1 1 -1 1 -1 -1 -1
5 40 5 70 18 -1 -1 18 60 -1 1 1 1 -1 1 -1 -1 -1
6 50 5 70 4 -1 -1 4 60 -1 1 1 x -1 1 -1 -1 -1
7 60 5 70 -1 -1 -1 -1 60 -1 1 1 1 -1 1 -1 -1 -1
8 -1 5 70 4 -1 -1 4 60 -1 1 1 1 -1 1 -1 -1 -1
9 70 5 10"""


def test_a_trace_in_the_standard_workload_format_is_read() -> None:
    trace = swf.parse(SWF.splitlines(), "compute", nodes=8)
    # sorted; two processors per node; the estimate is at least the run time
    assert trace.jobs == [
        (0, {"compute": 2}, 100, 200),
        (10, {"compute": 8}, 60, 60),
        (20, {"compute": 2}, 50, 50),
    ]
    assert trace.left_out == {
        "without run time": 1,
        "larger than 8 nodes": 1,
        "not numbers": 1,
        "without processors": 1,
        "without submission": 1,
        "without 18 columns": 1,
    }


def test_a_trace_begins_with_its_first_job() -> None:
    lines = SWF.splitlines()
    later = [line.replace(" 20 5 ", " 1027839865 5 ") for line in lines[5:6]]
    later += [line.replace(" 10 5 ", " 1027839845 5 ") for line in lines[6:7]]
    trace = swf.parse([*lines[:4], *later], "compute", nodes=8)
    assert [job.submitted for job in trace.jobs] == [0, 20]


def test_parts_of_a_job_are_not_jobs() -> None:
    """Of a job that was checkpointed, the first line has all, and the others its bursts."""
    whole, *_ = SWF.splitlines()[4:]
    parts = [whole.replace("200 -1 1 1", f"200 -1 {status} 1") for status in (2, 3, 4)]
    trace = swf.parse([whole, *parts], "compute", nodes=8)
    assert len(trace) == 1
    assert trace.left_out == {"as parts of other jobs": 3}


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ("traces: [{file: jobs.swf, from_seconds: 21}]", "from 21 s on; begin earlier"),
        ("traces: [{file: jobs.swf}], warm_up_seconds: 71", "its jobs are over 60 s"),
        (
            "quantum_traces: [{file: qpu.csv, from_seconds: 999}]",
            "from 999 s on; begin earlier",
        ),
        (
            "quantum_traces: [{file: qpu.csv}], warm_up_seconds: 999",
            "and the applications begin at 999 s; give a longer trace",
        ),
    ],
)
def test_a_trace_of_another_time_is_no_silent_zero(
    tmp_path: Path, trace: str, message: str
) -> None:
    (tmp_path / "jobs.swf").write_text("\n".join(SWF.splitlines()[5:7]))
    qpu.write(tmp_path / "qpu.csv", QpuTrace([*RECORDED]))
    path = tmp_path / "workload.yml"
    path.write_text(WORKLOAD.replace("nodes: 4", "nodes: 16"))
    path.write_text(f"{path.read_text()}background: {{{trace}}}\n")
    with pytest.raises(InputError, match=message):
        reading.recorded(reading.load(path), path)


@pytest.mark.parametrize("read", [lambda path: swf.read(path, "compute", 8), qpu.read])
def test_a_huge_trace_is_not_read_to_its_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[Path], NodeTrace | QpuTrace],
) -> None:
    path = tmp_path / "trace"
    head = "# sfq-qpu-trace: 1\nsubmitted,device_seconds\n"
    path.write_text(f"{head}1,2{'0' * 2_000_000}\n")
    with pytest.raises(InputError, match="trace: line 3: has 1,000,000 characters"):
        read(path)
    monkeypatch.setattr(bounded_files, "MOST_LINES", 9)
    path.write_text(head + 9 * "1,2\n")
    with pytest.raises(InputError, match="trace: more than 9 lines; cut it to fewer"):
        read(path)


def test_line_ends_of_windows_change_no_trace(tmp_path: Path) -> None:
    log = SACCT.splitlines()
    for path, text in ((tmp_path / "unix", "\n"), (tmp_path / "windows", "\r\n")):
        path.write_bytes(
            text.join(
                [
                    "JobID|Submit|End|ElapsedRaw|NNodes|Partition",
                    *(
                        "|".join(line.split("|")[i] for i in (0, 3, 4, 5, 6, 2))
                        for line in log[1:3]
                    ),
                ]
            ).encode()
        )
    unix, windows = (
        sacct.read(tmp_path / name, {"compute": 8}, None)
        for name in ("unix", "windows")
    )
    assert windows.jobs == unix.jobs


def test_a_damaged_header_of_a_trace() -> None:
    lines = ["; MaxNodes: 1", f"; MaxProcs: {'9' * 400}", *SWF.splitlines()[4:5]]
    (job,) = swf.parse(lines, "compute", nodes=8).jobs
    assert job.nodes == {"compute": 1}


def test_a_file_that_is_no_such_trace(tmp_path: Path) -> None:
    path = tmp_path / "jobs.swf"
    with pytest.raises(InputError, match=r"jobs\.swf"):
        swf.read(path, "compute", 8)
    path.write_text("JobID|State\n1|COMPLETED\n")
    with pytest.raises(InputError, match="left out: 2 without 18 columns"):
        swf.read(path, "compute", 8)


# of Slurm 24.11, with --duplicates: a requeued job, an array of which a part waits, steps,
# two heterogeneous jobs, and one that was cancelled before it started
SACCT = """\
JobID|JobName|Partition|Submit|End|ElapsedRaw|NNodes|TimelimitRaw|State
10|a|compute|2026-03-02T10:00:10|2026-03-02T10:01:50|100|2|5|COMPLETED
10.batch|batch|compute|2026-03-02T10:00:10|2026-03-02T10:01:50|100|1||COMPLETED
11|b|compute|2026-03-02T10:00:00|2026-03-02T10:00:30|30|1|UNLIMITED|REQUEUED
11|b|compute|2026-03-02T10:00:30|2026-03-02T10:01:30|60|1|UNLIMITED|TIMEOUT
12_1|c|compute|2026-03-02T10:00:20|2026-03-02T10:00:21|1|1|Partition_Limit|FAILED
12_[2-9]|c|compute|2026-03-02T10:00:20|Unknown|0|1|1|PENDING
13+0|d|compute|2026-03-02T10:00:40|2026-03-02T10:00:50|10|3|1|COMPLETED
13+0.0|d|compute|2026-03-02T10:00:40|2026-03-02T10:00:50|10|3||COMPLETED
13+1|d|quantum|2026-03-02T10:00:40|2026-03-02T10:00:49|9|1|2|COMPLETED
14+0|e|compute|2026-03-02T10:00:45|2026-03-02T10:00:50|5|2|1|COMPLETED
14+1|e|compute|2026-03-02T10:00:45|2026-03-02T10:00:50|5|1|1|COMPLETED
15|f|compute|2026-03-02T10:00:45|2026-03-02T10:00:45|0|0|1|CANCELLED by 1001
16|g|compute|2026-03-02T10:00:45|2026-03-02T10:01:45|60|1K|1|COMPLETED
17|h|other|2026-03-02T10:00:45|2026-03-02T10:01:45|60|1|1|COMPLETED
18|i|compute|Unknown|2026-03-02T10:01:45|60|1|1|COMPLETED
19|j|compute|2026-03-02T10:00:45|2026-03-02T10:01:45|-60|1|1|COMPLETED
20|k|compute|2026-03-02T10:00:45|2026-03-02T10:01:45|60|none|1|COMPLETED
21|l|compute|2026-03-02T10:0"""


def test_records_of_sacct_are_read() -> None:
    trace = sacct.parse(SACCT.splitlines(), {"compute": 8, "quantum": 1}, None)
    assert trace.jobs == [
        # twice, since it was requeued; without a limit, the estimate is a year. When the
        # first job ends, 21 s later, it still runs
        (0, {"compute": 1}, 30 - 21, 365 * 86400 - 21),
        (0, {"compute": 2}, 100 - 11, 300 - 11),
        # which ends first, with the limit of the partition, which is not known here
        (0, {"compute": 1}, 1, 365 * 86400 - 1),
        (30 - 21, {"compute": 1}, 60, 365 * 86400),
        # the components of a heterogeneous job
        (40 - 21, {"compute": 3, "quantum": 1}, 10, 120),
        (45 - 21, {"compute": 3}, 5, 60),
    ]
    assert trace.left_out == {
        "not over": 1,
        "without run time": 2,
        "larger than 8 nodes": 1,
        "in partitions that the workload does not have": 1,
        "without submission": 1,
        "without nodes": 1,
        "without 9 fields": 1,
    }


def test_a_job_without_a_time_limit_is_backfilled_around(tmp_path: Path) -> None:
    """And a mark of the byte order, as some editors write it, is no part of the header."""
    path = tmp_path / "jobs.txt"
    path.write_text(
        "\ufeffJobID|Partition|Submit|End|ElapsedRaw|NNodes|TimelimitRaw\n"
        "1|batch|100|160|50|2|UNLIMITED\n2|batch|100|101|1|1|1\n"
    )
    _, job = sacct.read(path, {"batch": 4}, None).jobs
    assert (job.seconds, job.estimate) == (50, 365 * 86400)


def test_jobs_of_before_the_record_are_in_its_queue() -> None:
    """`sacct --starttime` prints what ended later, whenever it was submitted."""
    day = 86400
    lines = [
        "JobID|Partition|Submit|End|ElapsedRaw|NNodes|TimelimitRaw",
        f"1|c|{9 * day}|{10 * day + 60}|{day // 2}|1|1440",
        # pending for ten days
        f"2|c|{day}|{11 * day + 60}|{day}|1|1440",
        f"3|c|{day}|{10 * day + 90}|40|1|1",
        f"4|c|{10 * day}|{10 * day + 200}|120|1|5",
    ]
    assert sacct.parse(lines, {"c": 4}, None).jobs == [
        (0, {"c": 1}, 40 - 10, 60 - 10),
        (0, {"c": 1}, 1, day / 2),
        (0, {"c": 1}, day, day),
        (0, {"c": 1}, 120, 300),
    ]


def test_records_of_sacct_on_one_partition() -> None:
    trace = sacct.parse(SACCT.splitlines(), {"batch": 3}, "batch")
    assert {name for job in trace.jobs for name in job.nodes} == {"batch"}
    # four nodes of two partitions, and 1,024 nodes
    assert trace.left_out["larger than 3 nodes"] == 2
    assert trace.left_out["in partitions that the workload does not have"] == 0


def test_times_of_sacct_as_seconds_since_the_epoch() -> None:
    """As with ``SLURM_TIME_FORMAT=%s``, which knows no summer time."""
    lines = [
        "JobID|Partition|Submit|End|ElapsedRaw|NNodes",
        "1|c|1774746000|1774746060|60|1",
        "2|c|1774749600|Unknown|60|1",
        "3|c|1774749600|1774749700|60|1",
    ]
    trace = sacct.parse(lines, {"c": 1}, None)
    assert [job.submitted for job in trace.jobs] == [0, 3600 - 60]
    assert trace.left_out == {"not over": 1}


def test_a_job_is_queued_from_when_it_is_eligible() -> None:
    lines = [
        "JobID|Partition|Submit|Eligible|End|ElapsedRaw|NNodes",
        "1|c|1774746000|1774746000|1774746020|20|1",
        # it waited for another
        "2|c|1774746000|1774746060|1774746160|90|1",
        "3|c|1774746030|Unknown|1774746160|90|1",
    ]
    trace = sacct.parse(lines, {"c": 1}, None)
    assert [job.submitted for job in trace.jobs] == [0, 10, 40]


# of Slurm 22.05, with SLURM_TIME_FORMAT=%s: job 1 held 3 nodes for 6 s, 2 for 5 s and 1 for
# 5 s; job 2 was suspended for 5 s and requeued; job 5 is heterogeneous
RESIZED = """\
JobID|Partition|Submit|Eligible|End|ElapsedRaw|NNodes|TimelimitRaw|State
9|compute|1795914811|1795914811|1795914812|1|1|1|COMPLETED
1|compute|1795914812|1795914812|1795914818|6|3|10|RESIZING
2|quantum|1795914812|1795914812|1795914825|8|1|525600|REQUEUED
1|compute|1795914818|1795914818|1795914823|11|2|10|RESIZING
1|compute|1795914823|1795914823|1795914828|16|1|10|COMPLETED
5+0|compute|1795914825|1795914825|1795914827|2|1|UNLIMITED|COMPLETED
5+1|quantum|1795914825|1795914825|1795914827|2|1|UNLIMITED|COMPLETED
"""


def test_a_resized_job_holds_each_number_of_nodes_once() -> None:
    trace = sacct.parse(RESIZED.splitlines(), {"compute": 3, "quantum": 1}, None)
    assert trace.jobs[1:] == [
        (0, {"compute": 3}, 6, 600),
        (0, {"quantum": 1}, 8, 525600 * 60),
        (6, {"compute": 2}, 5, 600 - 6),
        (11, {"compute": 1}, 5, 600 - 11),
        (13, {"compute": 1, "quantum": 1}, 2, 365 * 86400),
    ]
    assert not trace.left_out


def _segments(random: Random, job: int) -> Iterator[tuple[str, int, int]]:
    """Yield a job's rows as Slurm prints them, each with the time when its nodes are held."""
    submitted = random.randint(0, 500)
    for _ in range(random.choice([1, 1, 2])):  # it may be requeued
        start = submitted + random.choice([0, 0, random.randint(1, 300)])
        begin, components = start, random.choice([0, 0, 0, 2])
        for size in range(1 if components else random.choice([1, 1, 3])):
            end = begin + random.randint(1, 300)
            recorded = begin if size else submitted
            for number in range(components or 1):
                nodes = random.randint(1, 4)
                name = f"{job}+{number}" if components else str(job)
                times = f"{10**9 + recorded}|{10**9 + end}|{end - start}"
                yield f"{name}|compute|{times}|{nodes}", begin, end
            begin = end
        submitted = end


@pytest.mark.parametrize("seed", range(60))
def test_node_seconds_are_those_of_the_log_printed_once_or_twice(seed: int) -> None:
    random = Random(seed)
    rows = [row for job in range(9) for row in _segments(random, job)]
    first = min(end for _, _, end in rows)
    held = sum(
        int(text.rpartition("|")[2]) * (end - max(begin, first))
        for text, begin, end in rows
    )
    printed = [text for text, _, _ in rows]
    again = random.sample(printed, random.randint(0, len(printed)))
    header = "JobID|Partition|Submit|End|ElapsedRaw|NNodes"
    trace = sacct.parse([header, *printed, *again], {"compute": 99}, None)
    # those that end as the trace begins have a second, the resolution of its times
    ended = sum(int(text.rpartition("|")[2]) for text, _, end in rows if end == first)
    assert sum(job.seconds * job.nodes["compute"] for job in trace.jobs) == held + ended
    assert trace.left_out["printed twice"] == len(again)


def test_local_times_are_those_of_the_clock_or_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the night in which summer time ends in Rome, 02:30 was twice."""
    monkeypatch.setenv("TZ", "Europe/Rome")
    time.tzset()
    header = "JobID|Partition|Submit|End|ElapsedRaw|NNodes"
    night = 1792879200  # 2026-10-25T00:00:00 in Rome
    local, clock = [header], [header]
    for number in range(60):
        submitted = night + 300 * number
        rows = [submitted, submitted + 60 * (number % 7 + 1)]
        rest = f"{rows[1] - rows[0]}|1"
        clock.append("|".join([str(number), "c", *map(str, rows), rest]))
        texts = [datetime.fromtimestamp(row).isoformat() for row in rows]
        local.append("|".join([str(number), "c", *texts, rest]))
    try:
        trace = sacct.parse(local, {"c": 4}, None)
    finally:
        monkeypatch.undo()
        time.tzset()
    on_clock = sacct.parse(clock, {"c": 4}, None).jobs
    assert all(job in on_clock for job in trace.jobs)
    (left_out,) = trace.left_out.values()
    # those of two hours, from 02:00 to 03:00 and again
    assert left_out == 60 - len(trace) == 24


def test_times_in_digits_that_are_no_seconds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(
        "JobID|Partition|Submit|End|ElapsedRaw|NNodes\n"
        "1|c|20261001115959|20261001120100|61|1\n"
    )
    with pytest.raises(InputError, match="left out: 1 without submission"):
        sacct.read(path, {"c": 1}, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: no JobID, Partition, Submit, End, ElapsedRaw, NNodes"),
        ("JobID|State|Submit|End|ElapsedRaw\n", "line 1: no Partition, NNodes in the"),
        (
            "JobID|Partition|Submit|End|ElapsedRaw|NNodes\n1|c|Unknown|None|0|1\n",
            "no job of sacct --parsable2 (left out: 1 without submission)",
        ),
    ],
)
def test_what_sacct_did_not_print(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "jobs.txt"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        sacct.read(path, {"c": 1}, None)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


WORKLOAD = """
partitions: {compute: {nodes: 4}, quantum: {nodes: 1}}
qpus: {qpu: {partition: quantum}}
overheads: {step_seconds: 0, job_seconds: 0, resume_seconds: 0}
repetitions: 2
applications:
  loop:
    phases:
      - {nodes: 3, seconds: 100}
      - {qpu: qpu, seconds: 60}
"""


def wall(folder: Path, background: str) -> float:
    """The wall time of the application with the load of others."""
    path = folder / "workload.yml"
    path.write_text(f"{WORKLOAD}background: {{warm_up_seconds: 50, {background}}}\n")
    workload = reading.load(path)
    recorded = reading.recorded(workload, path)
    result = experiment.run(workload, PerStep(), recorded)
    assert isinstance(result, experiment.Result)
    return result.mean("wall")


def test_recorded_jobs_are_load(tmp_path: Path) -> None:
    """A heterogeneous job holds nodes of both partitions for 500 s, from 100 s on."""
    (tmp_path / "jobs.txt").write_text(
        "JobID|Partition|Submit|End|ElapsedRaw|NNodes\n"
        "1|compute|1000|1001|1|1\n"
        "2+0|compute|1100|1600|500|2\n"
        "2+1|quantum|1100|1600|500|1\n"
    )
    trace = "file: jobs.txt, format: sacct"
    # it waits for the application's first step, from 50 s to 150 s, and then holds the QPU
    assert wall(tmp_path, f"traces: [{{{trace}}}]") == 100 + 500 + 60
    # 75 s later in the trace, it is first
    assert wall(tmp_path, f"traces: [{{{trace}, from_seconds: 75}}]") == 474 + 100 + 60


TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=9)
# which a spreadsheet takes for no formula
NAME = TEXT.filter(lambda text: text[0] not in "=+-@")
SECONDS = st.floats(0, 2e9)


def optional(strategy: st.SearchStrategy[str]) -> st.SearchStrategy[str | None]:
    return st.one_of(st.none(), strategy)


JOBS = st.builds(
    QpuJob,
    job=NAME,
    user=NAME,
    project=optional(NAME),
    account=optional(NAME),
    slurm_job=optional(NAME),
    lease=optional(NAME),
    job_class=st.sampled_from(["production", "quality", None]),
    kind=st.just("circuit"),
    shots=st.one_of(st.none(), st.integers(1, 100_000)),
    state=st.sampled_from(["Completed", "Failed", "Cancelled"]),
    submitted=SECONDS,
    started=st.one_of(st.none(), SECONDS),
    ended=SECONDS,
    queued_seconds=SECONDS,
    attempts=st.integers(0, 9),
    qpu_seconds=SECONDS,
    device_seconds=st.floats(1e-3, 1e6),
    lost_qpu_seconds=SECONDS,
)


@settings(max_examples=40)
@given(st.lists(JOBS, min_size=1, max_size=5), NAME)
def test_a_trace_of_qpu_jobs_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, jobs: list[QpuJob], name: str
) -> None:
    path = tmp_path_factory.mktemp("trace") / "qpu.csv"
    written = QpuTrace([*jobs], " ".join(name.split()), "annealer")
    qpu.write(path, written)
    read = qpu.read(path)
    assert read.jobs == sorted(jobs, key=lambda job: job.submitted)
    assert (read.technology, read.anonymised) == ("annealer", False)
    assert not read.left_out


def job(number: int, *, user: str, lease: str | None, **times: float) -> QpuJob:
    at = times["submitted"]
    return QpuJob(
        job=f"job-{number}",
        user=user,
        project=f"{user}-project",
        account=f"{user}-account",
        slurm_job=str(7000 + number),
        lease=lease,
        job_class="production",
        kind="problem",
        shots=100,
        state="Completed",
        submitted=at,
        started=at + 1,
        ended=at + 1 + times["seconds"],
        queued_seconds=1.0,
        attempts=1,
        qpu_seconds=times["seconds"],
        device_seconds=times["seconds"],
        lost_qpu_seconds=0.0,
    )


RECORDED = [
    job(2, user="zoe", lease="lease-b", submitted=1.7e9 + 100.5, seconds=200),
    job(1, user="ann", lease="lease-a", submitted=1.7e9, seconds=10),
    job(3, user="ann", lease="lease-c", submitted=1.7e9 + 300, seconds=20),
]


def test_an_anonymised_trace_has_no_name_and_no_date(tmp_path: Path) -> None:
    path = tmp_path / "qpu.csv"
    qpu.write(path, qpu.anonymised(QpuTrace([*RECORDED], "fresnel", "neutral-atom")))
    text = path.read_text()
    for told in RECORDED:
        for name in (told.job, told.user, told.project, told.account, told.lease):
            assert str(name) not in text
        assert str(told.slurm_job) not in text
    for secret in ("fresnel", "170000", "ann", "zoe", "lease-", "UTC", "1970"):
        assert secret not in text
    read = qpu.read(path)
    assert read.anonymised
    assert [one.submitted for one in read.jobs] == [0, 100.5, 300]
    # equal names are equal numbers
    assert [one.user for one in read.jobs] == ["1", "2", "1"]
    assert [one.lease for one in read.jobs] == ["1", "2", "3"]
    assert [one.device_seconds for one in read.jobs] == [10, 200, 20]
    assert "# times: seconds since the first submission\n" in text


def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    path = tmp_path / "qpu.csv"
    path.write_text("before")
    broken = RECORDED[0]._replace(user="\ud800")  # no character of UTF-8
    with pytest.raises(UnicodeEncodeError):
        qpu.write(path, QpuTrace([broken]))
    assert path.read_text() == "before"
    assert [*tmp_path.iterdir()] == [path]


HEADER = "# sfq-qpu-trace: 1\n# jobs: {}\nsubmitted,device_seconds,user,class,shots\n"


def test_rows_that_are_no_jobs_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "qpu.csv"
    rows = [
        "5,60,ann,test,10",
        "1,30,,,",
        "2,0,ann,test,10",
        "2,-3,ann,test,10",
        "-1,30,ann,test,10",
        ",30,ann,test,10",
        "3,inf,ann,test,10",
        "3,4,ann,expert,10",
        "3,4,ann,test,ten",
        "3,4,a",
    ]
    path.write_text(HEADER.format(12) + "\n".join(rows))
    trace = qpu.read(path)
    assert [(one.submitted, one.device_seconds) for one in trace.jobs] == [
        (1, 30),
        (5, 60),
    ]
    assert trace.left_out == {
        "without device time": 1,
        "with a wrong device_seconds": 2,
        "with a wrong submitted": 2,
        "with a wrong class": 1,
        "with a wrong shots": 1,
        "without 5 columns": 1,
        "missing at the end of the file": 2,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected '# sfq-qpu-trace: 1'"),
        ("JobID|State\n", "line 1: expected '# sfq-qpu-trace: 1'"),
        ("# sfq-qpu-trace: 2\n", "line 1: expected version 1, not 2"),
        ("# sfq-qpu-trace: 1\n# qpu: q\n", "no line with the names of the columns"),
        ("# sfq-qpu-trace: 1\nsubmitted,user\n", "line 2: no column device_seconds"),
        (
            "# sfq-qpu-trace: 1\nsubmited\n",
            "line 2: unknown column 'submited', did you mean 'submitted'?",
        ),
        (
            "# sfq-qpu-trace: 1\n" + 2 * "submitted," + "device_seconds\n",
            "is there twice",
        ),
        (HEADER.format(0), "no job of a trace of QPU jobs"),
        (f"# sfq-qpu-trace: {'9' * 5000}", "line 1: expected '# sfq-qpu-trace: 1'"),
        (
            f'{HEADER.format(1)}1,2,"{"x" * 200_000}",,\n',
            "field larger than field limit",
        ),
    ],
)
def test_a_file_that_is_no_trace_of_qpu_jobs(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "qpu.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        qpu.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_leases_of_a_trace_are_load(tmp_path: Path) -> None:
    """The QPU's only vQPU is held until 300.5 s, and then until 320.5 s."""
    qpu.write(tmp_path / "qpu.csv", QpuTrace([*RECORDED]))
    # the application's quantum phase is from 150 s on
    assert wall(tmp_path, "quantum_traces: [{file: qpu.csv}]") == 250.5 + 20 + 60
    # jobs that were before do not count
    later = "quantum_traces: [{file: qpu.csv, from_seconds: 200}]"
    assert wall(tmp_path, later) == 100 + 60
    # a lease is held between its jobs
    held = [one._replace(lease="one") for one in RECORDED]
    qpu.write(tmp_path / "qpu.csv", QpuTrace(held))
    assert wall(tmp_path, "quantum_traces: [{file: qpu.csv}]") == 320.5 - 50 + 60


def test_recorded_jobs_that_no_window_lets_run_are_left_out(tmp_path: Path) -> None:
    qpu.write(tmp_path / "qpu.csv", QpuTrace([*RECORDED]))
    path = tmp_path / "workload.yml"
    window = "maintenance: [{at_seconds: 0, seconds: 5, every_seconds: 105}]"
    path.write_text(
        WORKLOAD.replace("partition: quantum", f"partition: quantum, {window}")
        + "background: {warm_up_seconds: 0, quantum_traces: [{file: qpu.csv}]}\n"
    )
    (load,) = reading.recorded(reading.load(path), path)
    assert len(load) == 2
    assert load.left_out == {
        "longer than the time between two maintenance windows of qpu": 1
    }


def report(**more: JSON) -> dict[str, JSON]:
    """As ``sfq usage --json`` prints it, of two hours."""
    row: dict[str, JSON] = {"user": "ann", "jobs": 2000, "seconds": 5900.0}
    idle: dict[str, JSON] = {"user": "bob", "jobs": 3, "seconds": 0.0}
    rows: list[JSON] = [{**row, "lost_seconds": 100.0, "cost": None}, idle]
    return {"by": "user", "from": 3600.0, "until": 10800.0, "rows": rows, **more}


def test_a_usage_report_is_load(tmp_path: Path) -> None:
    file = tmp_path / "usage.json"
    file.write_text(json.dumps(report()))
    (jobs,) = usage.read(file, "qpu", 0.5)
    assert (jobs.user, jobs.per_hour, jobs.seconds) == ("ann", 1000, 3)
    assert wall(tmp_path, "quantum_usage: [{file: usage.json}]") > 160


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (report(**{"from": None}), "no period; give sfq usage a start with --from"),
        (report(until=3600.0), "no period; give sfq usage a start with --from"),
        (report(rows=[]), "no job that occupied the device"),
        (report(rows=[{"jobs": -1, "seconds": 3}]), "rows[0].jobs: "),
        (report(rows=[{"jobs": 2}]), "rows[0].seconds: "),
        (report(rows=[{"jobs": 10**400, "seconds": 3.0}]), "rows[0].jobs: "),
        (
            report(rows=[{"jobs": 10**9, "seconds": 3.0}]),
            "per_hour 5e+08, of the jobs of a row on average: input should be less",
        ),
        (
            report(rows=[{"jobs": 9, "seconds": 1e-320}]),
            "of the jobs of a row on average: input should be greater",
        ),
        (report(until=3600.1), "no period; give sfq usage a start with --from"),
        ({"user": "ann"}, "from: Field required; expected what 'sfq usage --json'"),
    ],
)
def test_a_file_that_is_no_usage_report(
    tmp_path: Path, content: JSON, message: str
) -> None:
    path = tmp_path / "usage.json"
    path.write_text(json.dumps(content))
    with pytest.raises(InputError) as caught:
        usage.read(path, "qpu", 1.0)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_reports_of_more_than_there_is(tmp_path: Path) -> None:
    more = report(rows=[{"user": "ann", "jobs": 100, "seconds": 7200.0}])
    (tmp_path / "usage.json").write_text(json.dumps(more))
    with pytest.raises(ValidationErrors, match="3600 s of QPU time per hour, and"):
        wall(tmp_path, "quantum_usage: [{file: usage.json}]")


@pytest.mark.parametrize("key", ["quantum", "quantum_traces", "quantum_usage"])
def test_qpu_jobs_without_a_qpu(tmp_path: Path, key: str) -> None:
    path = tmp_path / "workload.yml"
    element = "per_hour: 1, seconds: 1" if key == "quantum" else "file: f"
    path.write_text(
        "partitions: {c: {nodes: 1}}\n"
        "applications: {a: {phases: [{seconds: 1}]}}\n"
        f"background: {{{key}: [{{{element}}}]}}\n"
    )
    with pytest.raises(ValidationErrors, match=f"background.{key}: there are no qpus"):
        reading.load(path)
