"""What the service accounts to a workflow's steps is what the workflow's journal says."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sf_quantum.files import JSON
from tests.support.service_process import SFQ, QpuService

if TYPE_CHECKING:
    from tests.support.projects import Project

# the same numbers, but for what JSON and adding up in another order do to them
TOLERANCE = 1e-9

pytestmark = [
    pytest.mark.process,
    pytest.mark.usefixtures("measured"),
    pytest.mark.devices("sfq", "dwave", "acme"),
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[QpuService]:
    made = QpuService(tmp_path / "service", "--vqpus", "3")
    yield made
    made.end()


def _sfq(service: QpuService, token: str, *words: str) -> dict[str, JSON]:
    command = [*SFQ, *words, "--url", service.url, "--token-file", token, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, JSON] = json.loads(done.stdout)
    return answer


def _usage(service: QpuService, token: str) -> dict[tuple[str, str], dict[str, JSON]]:
    """The rows of the report by step, by run and step."""
    report = _sfq(service, token, "usage", "--by", "step")["rows"]
    assert isinstance(report, list)
    rows = [row for row in report if isinstance(row, dict)]
    return {(str(row["run"]), str(row["step"])): row for row in rows}


def _number(value: JSON) -> float:
    assert isinstance(value, int | float), value
    return float(value)


def _journal(project: Project) -> dict[tuple[str, str], list[float]]:
    """QPU seconds, seconds on the device and in its queue, by run and step."""
    events = project.events()
    sums: defaultdict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * 3)
    for event in events:
        if event["event"] == "qpu":
            step = str(event["job"]).rpartition("/")[0]
            times = ("qpu_seconds", "ran_seconds", "queued_seconds")
            for place, name in enumerate(times):
                sums[str(events[0]["run"]), step][place] += _number(event[name])
    return dict(sums)


def test_the_accounts_agree_with_the_journal(
    project: Project, service: QpuService
) -> None:
    token = service.with_tokens("ada")
    service.start()
    project.deployment("qpu", "sfq.rest", url=service.url, tokenFile=token, vqpus=3)
    # three jobs at once, so that some wait; and a step that uses its QPU twice
    script = f"sfq solve --problem {project.folder}/problem.json --output out --reads"
    project.step("spread", f"{script} 2000", "qpu", scatter=3)
    project.step("twice", f"{script} 3000\n{script} 4000", "qpu")
    runs: dict[tuple[str, str], list[float]] = {}
    for _ in range(2):
        assert project.run() == 0, project.log
        runs |= _journal(project)
    assert sorted(step for _, step in runs) == ["/spread"] * 2 + ["/twice"] * 2
    told = _usage(service, token)
    assert told.keys() == runs.keys()
    for key, sums in runs.items():
        row = told[key]
        names = ("qpu_seconds", "seconds", "wait_seconds")
        accounted = [_number(row[name]) for name in names]
        assert accounted == pytest.approx(sums, rel=TOLERANCE)
        assert row["jobs"] == row["completed"] == (3 if key[1] == "/spread" else 2)
    command = [*SFQ, "report", str(project.folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    reported = json.loads(done.stdout)["usage"]["qpu_seconds"]
    run = project.events()[0]["run"]
    latest = [_number(told[key]["qpu_seconds"]) for key in told if key[0] == run]
    assert sum(latest) == pytest.approx(reported, rel=TOLERANCE)


def test_what_a_killed_run_used_is_accounted_to_it(
    project: Project,
    service: QpuService,
    until: Callable[[Callable[[], object], str], None],
) -> None:
    token = service.with_tokens("ada")
    service._options += ["--time-scale", "200"]  # minutes for the job
    service.start()
    project.deployment("qpu", "sfq.rest", url=service.url, tokenFile=token)
    script = f"sfq solve --problem {project.folder}/problem.json --output out"
    project.step("long", f"{script} --reads 10000", "qpu")
    driver = project.start()
    until(lambda: service.jobs() == ["Running"], "the QPU job")
    driver.kill()
    driver.wait()
    until(lambda: service.jobs() == ["Cancelled"], "the guardian")
    run = str(project.events()[0]["run"])
    (row,) = _usage(service, token).values()
    assert (row["run"], row["step"], row["cancelled"]) == (run, "/long", 1)
    assert 0 < _number(row["qpu_seconds"]) < 10
