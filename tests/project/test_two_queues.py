"""The draws of ``tests.benchmarks.two_queues``, which needs a lab for the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.two_queues_trial import Cell, Setting, quantile, read_waits
from tests.benchmarks.two_queues_ways import WAYS

CELL = Cell("file", 4, "plain", 0)


def test_waits_are_quantiles_of_a_column(tmp_path: Path) -> None:
    file = tmp_path / "waits.csv"
    file.write_text("backend,avg_qpu_wait_s\niqm_garnet,50\niqm_garnet,10\n")
    waits = read_waits(file, "avg_qpu_wait_s")
    assert [quantile(waits, share) for share in (0.0, 0.25, 1.0)] == [10, 20, 50]
    assert all(10 <= wait <= 50 for wait in Setting(1.0, 1, waits).queue(CELL))


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "soon", ""])
def test_a_column_that_is_not_of_seconds_is_refused(tmp_path: Path, value: str) -> None:
    file = tmp_path / "waits.csv"
    file.write_text(f"wait,other\n1,a\n{value},b\n2,c\n")
    with pytest.raises(SystemExit, match=r"waits\.csv: .*'wait'"):
        read_waits(file, "wait")


def test_a_missing_column_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "waits.csv"
    file.write_text("wait\n1\n")
    with pytest.raises(SystemExit, match=r"waits\.csv: no column 'seconds'"):
        read_waits(file, "seconds")


@pytest.mark.parametrize("queue", ["heavy", "file", "30"])
def test_all_ways_of_a_run_meet_the_same_waits(queue: str) -> None:
    setting = Setting(1.0, 1, [1.0, 2.0, 90.0])
    first, *others = (
        setting.queue(replace(CELL, queue=queue, way=way)) for way in WAYS
    )
    assert all(one == first for one in others)
