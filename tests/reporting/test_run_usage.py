"""What runs held, from journals whose areas are known exactly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sf_quantum.cli import main
from sf_quantum.files import JSON
from sf_quantum.reporting.run_usage import Hold, RunUsage, overall, table, together
from tests.support.journals import Event, measure, whole, write


def allocation(
    name: str, *changes: tuple[str, float, int], **more: JSON
) -> list[Event]:
    """The events of one allocation: status, time and nodes of each."""
    return [
        {
            "time": at,
            "event": "allocation",
            "allocation": name,
            "slurm_job": name.split("+")[0],
            "deployment": "site",
            "service": "compute",
            "strategy": "per-step",
            "partition": "compute",
            "quantum": False,
            "job": None,
            "status": status,
            "at": at,
            "nodes": nodes,
            "node_list": f"c[1-{nodes}]" if nodes else None,
            **more,
        }
        for status, at, nodes in changes
    ]


def simple(
    name: str, requested: float, granted: float, released: float, nodes: int = 1
) -> list[Event]:
    return allocation(
        name,
        ("requested", requested, 0),
        ("granted", granted, nodes),
        ("released", released, 0),
    )


def job(name: str, allocation: str, state: str = "COMPLETED") -> Event:
    return {
        "time": 0.0,
        "event": "slurm",
        "job": name,
        "slurm_job": allocation,
        "allocation": allocation,
        "deployment": "site",
        "state": state,
    }


def qpu(qpu_job: str, seconds: float | None) -> Event:
    return {
        "time": 0.0,
        "event": "qpu",
        "job": "/solve/0",
        "qpu": "device",
        "qpu_job": qpu_job,
        "qpu_seconds": seconds,
    }


def a_run(*parts: list[Event], start: float = 0, end: float = 100) -> list[Event]:
    return [
        {"time": start, "event": "run", "file": "site.yml", "workflows": ["cluster"]},
        *(event for part in parts for event in part),
        {"time": end, "event": "end", "status": "completed"},
    ]


def area(usage: RunUsage, *, quantum: bool = False) -> float:
    """Node-seconds another way: by Riemann's sum over the step function."""
    steps = usage.nodes(quantum=quantum)
    following = [time for time, _ in steps[1:]]
    return sum(
        nodes * (end - time)
        for (time, nodes), end in zip(steps, following, strict=False)
    )


def test_node_seconds_are_nodes_times_seconds() -> None:
    usage = measure(a_run(simple("1", 10, 12, 20, nodes=3), simple("2", 10, 15, 25)))
    assert usage.nodes() == [(12, 3), (15, 4), (20, 1), (25, 0)]
    assert usage.node_seconds() == area(usage) == 3 * 8 + 1 * 10
    assert [a.waited for a in usage.allocations] == [2, 5]
    assert (usage.node_seconds(quantum=True), usage.nodes(quantum=True)) == (0, [])


def test_a_run_without_slurm_holds_nothing() -> None:
    usage = measure(a_run())
    assert (usage.allocations, usage.nodes(), usage.node_seconds()) == ([], [], 0)
    assert (usage.started, usage.ended) == (0, 100)
    assert table(usage) == ""
    assert measure([]).node_seconds() == 0


def test_what_follows_at_once_leaves_no_step() -> None:
    usage = measure(a_run(simple("1", 0, 10, 20, 2), simple("2", 0, 20, 30, 2)))
    assert usage.nodes() == [(10, 2), (30, 0)]


def test_an_allocation_that_shrinks_counts_what_it_keeps() -> None:
    usage = measure(
        a_run(
            allocation(
                "7",
                ("requested", 0, 0),
                ("granted", 1, 3),
                ("resized", 11, 1),
                ("resized", 31, 2),
                ("released", 36, 0),
                strategy="elastic",
            )
        )
    )
    (held,) = usage.allocations
    assert held.holds == [Hold(1, 11, 3), Hold(11, 31, 1), Hold(31, 36, 2)]
    assert usage.node_seconds() == area(usage) == 30 + 20 + 10
    assert (held.granted, held.released, held.waited) == (1, 36, 1)
    assert held.node_list == "c[1-2]"


def test_a_requeued_job_waits_again_and_holds_nothing_meanwhile() -> None:
    usage = measure(
        a_run(
            allocation(
                "7",
                ("requested", 0, 0),
                ("granted", 5, 2),
                ("released", 10, 0),
                ("granted", 40, 2),
                ("released", 50, 0),
            )
        )
    )
    (held,) = usage.allocations
    assert usage.nodes() == [(5, 2), (10, 0), (40, 2), (50, 0)]
    assert usage.node_seconds() == area(usage) == 10 + 20
    assert (held.granted, held.released) == (5, 50)
    assert (held.waited, held.requeues, held.unended) == (5 + 30, 1, False)


def test_the_components_of_a_heterogeneous_job_are_counted_apart() -> None:
    classical = simple("9+0", 0, 10, 100, nodes=3)
    quantum = allocation(
        "9+1",
        ("requested", 0, 0),
        ("granted", 10, 1),
        ("released", 30, 0),
        quantum=True,
        service="quantum",
        partition="quantum",
    )
    usage = measure(a_run(classical, quantum))
    assert usage.node_seconds() == area(usage) == 270
    assert usage.node_seconds(quantum=True) == area(usage, quantum=True) == 20
    assert [a.slurm_job for a in usage.allocations] == ["9", "9"]


def test_one_never_granted_holds_nothing_and_has_waited() -> None:
    usage = measure(
        a_run(allocation("3", ("requested", 10, 0), ("released", 70, 0)), end=100)
    )
    (held,) = usage.allocations
    assert (held.granted, held.released, held.waited) == (None, 70, 60)
    assert (usage.node_seconds(), held.requeues, held.unended) == (0, 0, False)


def test_a_killed_drivers_use_counts_to_its_last_event() -> None:
    events = a_run(
        simple("1", 0, 1, 5),
        allocation("2", ("requested", 5, 0), ("granted", 10, 2)),
        allocation("3", ("requested", 6, 0)),
        [whole({"time": 35.5, "event": "job", "job": "/a/0"})],
    )[:-1]
    usage = measure(events)
    _, held, pending = usage.allocations
    assert usage.ended == 35.5
    assert (held.unended, held.released, held.node_seconds) == (True, None, 51)
    assert (pending.unended, pending.granted, pending.waited) == (False, None, 29.5)
    assert usage.node_seconds() == area(usage) == 4 + 51
    assert "up to it: 2" in table(usage)


def test_slurms_whole_seconds_may_come_before_the_request() -> None:
    # asked at 10.7 by the driver's clock, granted and started within Slurm's second 10
    usage = measure(a_run(simple("1", 10.7, 10, 20)))
    assert (usage.node_seconds(), usage.allocations[0].waited) == (10, 0)


def test_an_allocation_within_one_second_is_none_of_its_area() -> None:
    usage = measure(a_run(simple("1", 10, 10, 10)))
    assert (usage.nodes(), usage.node_seconds()) == ([], 0)
    assert usage.allocations[0].granted == 10


def test_shares_are_by_service_and_strategy() -> None:
    elastic = allocation(
        "3",
        ("requested", 0, 0),
        ("granted", 2, 2),
        ("released", 7, 0),
        strategy="elastic",
    )
    usage = measure(a_run(simple("1", 0, 1, 3), simple("2", 3, 6, 8), elastic))
    assert [
        (s.service, s.strategy, s.allocations, s.waited, s.node_seconds)
        for s in usage.services()
    ] == [("compute", "per-step", 2, 4, 4), ("compute", "elastic", 1, 2, 10)]


def test_the_same_id_on_two_clusters_is_two_allocations() -> None:
    there = [{**event, "deployment": "there"} for event in simple("1", 0, 5, 6)]
    usage = measure(a_run(simple("1", 0, 1, 3), there))
    assert [a.node_seconds for a in usage.allocations] == [2, 1]


def test_qpu_seconds_are_counted_once_a_job() -> None:
    once = measure(a_run([qpu("1", 2.5), qpu("2", None)]))
    again = measure(a_run([qpu("1", 2.5), qpu("3", 1.5)]))
    assert sum(once.qpu_seconds.values()) == 2.5
    assert sum(together([once, again]).qpu_seconds.values()) == 4.0
    unknown = measure(a_run([qpu("1", None)]))
    for runs in ([once, unknown], [unknown, once]):
        assert sum(together(runs).qpu_seconds.values()) == 2.5


def test_two_workflows_add_up() -> None:
    one = measure(a_run(simple("1", 0, 10, 30, 2), start=0, end=40))
    two = measure(a_run(simple("2", 5, 20, 50, 1), start=5, end=60))
    both = together([one, two])
    assert both.nodes() == [(10, 2), (20, 3), (30, 1), (50, 0)]
    assert both.node_seconds() == area(both) == 40 + 30
    assert overall([one, two]).startswith("2 runs, 60.0 s from first to last event: ")


def test_the_table_has_a_line_an_allocation_and_sums() -> None:
    quantum = allocation(
        "11+1",
        ("requested", 1, 0),
        ("granted", 4, 2),
        ("resized", 8, 1),
        ("released", 10, 0),
        quantum=True,
        service="quantum",
        strategy="elastic",
    )
    jobs = [
        job("/loop/a/0.1", "10", "TIMEOUT"),
        job("/loop/q/0.1", "11+1"),
        job("/loop/q/0.2", "11+1", "FAILED"),
    ]
    known: Event = {"time": 0.0, "event": "job", "job": "/loop/a/0.1"}
    jobs.append({**known, "step": "/loop/a", "tag": "0.1", "loops": 1})
    usage = measure(a_run(simple("10", 0, 3, 8, 3), quantum, jobs, [qpu("1", 2.5)]))
    header, first, second, _, totals = table(usage).splitlines()
    assert header.split()[-3:] == ["waited", "node-seconds", "jobs"]
    assert first.split("  ")[0] == "10"
    assert first.endswith("3.0 s          15.0  /loop/a/0.1 TIMEOUT")
    assert " 1-2 " in second
    assert second.endswith("10.0  2 jobs, 1 not completed")
    assert totals == (
        "2 allocations, 3 jobs on Slurm (2 not completed); "
        "node-seconds: classical 15.0, quantum 10.0; QPU 2.5 s; waited 6.0 s"
    )


@pytest.mark.parametrize(
    ("used", "told"), [(0.0362, "QPU 0.0362 s"), (12_345.6, "QPU 12346 s")]
)
def test_short_and_long_uses_of_a_qpu_keep_their_digits(used: float, told: str) -> None:
    usage = measure(a_run(simple("10", 0, 3, 8, 3), [qpu("1", used)]))
    assert told in table(usage)


def test_the_command_adds_the_table_where_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = a_run(simple("10", 0, 3, 8, 3))
    assert main(["report", str(write(tmp_path / "1.jsonl", events))]) == 0
    assert table(measure(events)) in capsys.readouterr().out
    assert main(["report", str(write(tmp_path / "2.jsonl", a_run()))]) == 0
    assert "Slurm" not in capsys.readouterr().out


def test_the_command_sums_several_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = a_run(simple("1", 0, 3, 8, 3)), a_run(simple("2", 0, 8, 9, 3))
    paths = write(tmp_path / "1.jsonl", one), write(tmp_path / "2.jsonl", two)
    assert main(["report", *map(str, paths)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == overall([measure(one), measure(two)])
    assert "node-seconds: classical 18.0" in out.splitlines()[-1]


def test_the_command_gives_programs_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = a_run(simple("10", 0, 3, 8, 3), [job("/a/0", "10")], [qpu("1", 2.5)])
    assert main(["report", str(write(tmp_path / "1.jsonl", events)), "--json"]) == 0
    usage = json.loads(capsys.readouterr().out)["usage"]
    assert usage["node_seconds"] == {"classical": 15, "quantum": 0}
    assert usage["nodes"]["classical"] == [[3, 3], [8, 0]]
    assert usage["qpu_seconds"] == 2.5
    assert usage["allocations"][0]["holds"] == [{"start": 3, "end": 8, "nodes": 3}]
    assert usage["services"][0]["node_seconds"] == 15
    assert usage["slurm_jobs"][0]["state"] == "COMPLETED"


def test_runs_that_overlap_share_a_panel(tmp_path: Path) -> None:
    quantum = simple("3", 60, 70, 80)
    paths = [
        write(tmp_path / f"{n}.jsonl", events)
        for n, events in enumerate(
            [
                a_run(simple("1", 0, 10, 30, 2), end=40),
                a_run(simple("2", 5, 20, 50), start=5, end=60),
                a_run(
                    [{**event, "strategy": "elastic"} for event in quantum],
                    allocation("4", ("granted", 70, 1), quantum=True),
                    start=60,
                    end=90,
                ),
            ]
        )
    ]
    picture = tmp_path / "nodes.svg"
    assert main(["report", *map(str, paths), "--nodes", str(picture)]) == 0
    drawn = picture.read_text()
    for text in (
        "Nodes in use, by workflow",
        "seconds since the first event",
        "per-step: 60 s, 70 classical node-seconds",
        "elastic: 30 s, 10 classical node-seconds",
        "cluster (1)",
        "cluster (2)",
        "still held at the journal's last event",
    ):
        assert f"<!-- {text} -->" in drawn
    assert drawn.count("<!-- classical nodes -->") == 2
    assert drawn.count("<!-- quantum -->") == drawn.count("<!-- nodes -->") == 1


def test_the_picture_may_be_png(tmp_path: Path) -> None:
    path = write(tmp_path / "1.jsonl", a_run(simple("1", 0, 10, 30, 2)))
    picture = tmp_path / "nodes.png"
    assert main(["report", str(path), "--nodes", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{}/none.jsonl", "--nodes", "{}/a.png"], "nothing to draw"),
        (["{}/some.jsonl", "--nodes", "{}/a.pdf"], "expected a .png or .svg file"),
        (["{}/some.jsonl", "--nodes", "{}/no/a.png"], "cannot be written"),
        (["{}/some.jsonl", "{}/none.jsonl", "--json"], "show one run"),
        (["{}/some.jsonl", "{}/none.jsonl", "--follow"], "show one run"),
    ],
)
def test_bad_input_is_one_line_and_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    write(tmp_path / "none.jsonl", a_run(simple("1", 0, 10, 10)))
    write(tmp_path / "some.jsonl", a_run(simple("1", 0, 10, 20)))
    try:
        code: str | int | None = main(
            ["report", *(word.format(tmp_path) for word in arguments)]
        )
    except SystemExit as ended:  # argparse's own
        code = ended.code
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line


@pytest.mark.process
def test_a_table_needs_nothing_heavy(tmp_path: Path) -> None:
    path = write(tmp_path / "1.jsonl", a_run(simple("1", 0, 10, 30, 2)))
    code = (
        "import sys; from sf_quantum.cli import main\n"
        f"main(['report', {str(path)!r}])\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "classical 40.0" in done.stdout
    assert not {"numpy", "matplotlib", "streamflow"} & set(done.stderr.split())
