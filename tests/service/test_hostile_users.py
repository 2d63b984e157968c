"""The benchmark of hostile users, in short: none of its attacks loses others' jobs."""

from __future__ import annotations

import pytest

from tests.benchmarks import hostile

pytestmark = pytest.mark.process


def test_no_attack_loses_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--users 2 --waiting 20 --seconds 0.5 --clients 3 --connections 20"
    sizes += " --reads 1000"
    hostile.main(sizes.split())
    titles, *rows = capsys.readouterr().out.splitlines()
    cells = [dict(zip(titles.split("|"), r.split("|"), strict=True)) for r in rows]
    assert [row["attack"] for row in cells] == [*hostile.ATTACKS]
    for row in cells:
        assert int(row["jobs"]) > 0
        assert (row["lost"], row["refused"]) == ("0", "0")
