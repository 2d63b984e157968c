"""``sfq admin`` and ``sfq usage`` against a service that runs."""

from __future__ import annotations

import csv
import io
import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from sf_quantum.cli import main
from sf_quantum.cli.qpu import usage
from sf_quantum.cli.qpu.service import format_time
from sf_quantum.files import JSON
from sf_quantum.protocol.usage_columns import KEYS
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.domain.jobs import Identity
from sf_quantum.service.http.auth import FixedIdentity
from tests.support import waiting
from tests.support.service import RunningService, emulated, example_bqm, running_service

pytestmark = pytest.mark.devices("sfq", "dwave", "acme")

Sfq = Callable[..., str]


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service(EmulatedDevice(time_scale=0)) as running:
        yield running


@pytest.fixture
def sfq(service: RunningService, capsys: pytest.CaptureFixture[str]) -> Sfq:
    """Runs a command, and gives what it printed."""

    def run(*words: str, code: int = 0) -> str:
        assert main([*words, "--url", service.url]) == code
        told = capsys.readouterr()
        text = told.err if code else told.out
        assert not code or text.count("\n") == 1
        return text

    return run


def test_the_qpu_is_shut_and_opened(service: RunningService, sfq: Sfq) -> None:
    assert "emulator (annealer): online" in sfq("admin", "status")
    told = sfq("admin", "drain", "--message", "new laser")
    assert "the QPU is being drained: new laser" in told
    assert not service.queue.availability.is_open
    assert "the QPU is closed: broken" in sfq("admin", "close", "--message", "broken")
    assert json.loads(sfq("admin", "open", "--json"))["status"] == "online"
    lines = sfq("admin", "audit").splitlines()
    assert [line.split()[2] for line in lines[1:]] == ["open", "close", "drain"]
    assert "status from open to draining" in lines[-1]
    assert len(sfq("admin", "audit", "--limit", "1").splitlines()) == 2


def test_the_audit_names_the_user_of_a_lease(service: RunningService, sfq: Sfq) -> None:
    lease = service.ask("POST", "/v1/leases", {"user": "ann"}).json()
    service.ask("DELETE", f"/v1/leases/{lease['id']}")
    (line,) = sfq("admin", "audit").splitlines()[1:]
    assert line.split()[-2:] == ["ann", "done"]


def test_maintenance_is_announced_and_taken_back(
    service: RunningService, sfq: Sfq
) -> None:
    assert sfq("admin", "maintenance") == "no maintenance\n"
    sfq("admin", "maintenance", "--starts", "2h", "--ends", "3h", "--message", "laser")
    (window,) = service.queue.availability.windows
    assert window.starts == pytest.approx(time.time() + 7200, abs=10)
    assert window.ends == pytest.approx(window.starts + 3600, abs=10)
    assert "laser" in sfq("admin", "status")
    (line,) = sfq("admin", "audit").splitlines()[1:]
    starts, ends = (format_time(moment) for moment in (window.starts, window.ends))
    assert f"starts from - to {starts}; ends from - to {ends}; message" in line
    sfq("admin", "maintenance", "--take-back", str(window.id))
    assert service.queue.availability.windows == []
    wrong = sfq("admin", "maintenance", "--ends", "2h", code=2)
    assert "--ends: needs --starts" in wrong
    late = ("--starts", "2h", "--ends", "1h")
    assert "ends: expected a time after" in sfq("admin", "maintenance", *late, code=2)


# its operations are the emulated device's
@pytest.mark.devices
def test_an_operation_is_rehearsed_and_run(service: RunningService, sfq: Sfq) -> None:
    listed = sfq("admin", "operations")
    (scale,) = [line for line in listed.splitlines() if "set-time-scale" in line]
    assert scale.endswith("a drained QPU")
    told = sfq("admin", "run", "set-noise", "noise=2", "--dry-run")
    assert told == "set-noise would change noise from 0.0 to 2.0\n"
    assert emulated(service.queue).noise == 0
    told = sfq("admin", "run", "set-noise", "noise=2")
    assert told == "set-noise changed noise from 0.0 to 2.0\n"
    assert emulated(service.queue).noise == 2
    assert "changed calibration from" in sfq("admin", "run", "recalibrate")
    for words, error in (
        (("set-noise", "noise=200"), "parameters.noise: expected 0 to 100"),
        (("set-noise", "noise"), "noise: expected KEY=VALUE"),
        (("set-time-scale", "time_scale=1"), "the QPU must be drained first"),
        (("melt",), "the device has no operation 'melt'"),
    ):
        assert error in sfq("admin", "run", *words, code=2)


@pytest.mark.parametrize(
    "words",
    [
        ["admin"],
        ["admin", "maintenance", "--starts", "noon"],
        ["usage", "--from", "yesterday"],
        ["usage", "--by", "hour"],
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("act", ["drain", "backup"])
def test_a_page_of_help_begins_with_a_sentence(
    act: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["admin", act, "--help"])
    described = capsys.readouterr().out.split("\n\n")[1]
    assert described[0].isupper()
    assert described.endswith(".")


def test_who_is_no_admin_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    ann = Identity("ann", admin=False)
    with running_service(
        EmulatedDevice(time_scale=0), authenticate=FixedIdentity(ann)
    ) as service:
        assert main(["admin", "drain", "--url", service.url]) == 2
        assert "only admins may do this" in capsys.readouterr().err
        assert main(["admin", "status", "--url", service.url]) == 0


def _use(service: RunningService, jobs: int) -> None:
    lease = service.acquire()
    for number in range(jobs):
        body: dict[str, JSON] = {"problem": example_bqm(), "purpose": f"/s{number}/0"}
        body["idempotency_key"] = str(number)
        job = service.ask("POST", "/v1/jobs", body, lease=lease).json()["id"]
        service.ask("GET", f"/v1/jobs/{job}?wait=60")


@pytest.mark.process
def test_usage_says_what_the_service_does(service: RunningService, sfq: Sfq) -> None:
    _use(service, 3)
    table = sfq("usage", "--by", "step").splitlines()
    assert [line.split()[2] for line in table[1:-2]] == ["/s0", "/s1", "/s2"]
    assert table[-2].split()[:2] == ["total", "3"]
    told = json.loads(sfq("usage", "--by", "step", "--json"))
    assert told["total"]["jobs"] == len(told["rows"]) == 3
    assert json.loads(sfq("usage", "--until", "1h", "--json"))["rows"] == []


# the price is set on the emulated device
@pytest.mark.devices
def test_usage_shows_a_cost_where_the_device_has_a_price(
    service: RunningService, sfq: Sfq
) -> None:
    assert "cost" not in sfq("usage")
    priced = emulated(service.queue).model_copy(update={"cost_per_second": 100.0})
    service.queue.jobs.replace_device(priced)
    _use(service, 2)
    table = [line.split("  ") for line in sfq("usage").splitlines()]
    assert table[0][-1].strip() == "cost"
    (row,) = json.loads(sfq("usage", "--json"))["rows"]
    assert row["cost"] == pytest.approx(row["qpu_seconds"] * 100.0)
    assert float(table[1][-1]) == pytest.approx(row["cost"], rel=1e-2)


def test_texts_of_others_do_not_act_on_the_terminal(
    service: RunningService, sfq: Sfq
) -> None:
    evil, shown = "\x1b]0;title\x07\x1b[2J\x9b1m", r"\x1b]0;title\x07\x1b[2J\x9b1m"
    lease = service.acquire()
    body: dict[str, JSON] = {"problem": example_bqm(), "purpose": evil}
    service.ask("POST", "/v1/jobs", {**body, "idempotency_key": "k"}, lease=lease)
    service.until(lease, "Completed")
    sfq("admin", "close", "--message", evil)
    for words in (("usage", "--by", "step"), ("qpus",), ("admin", "status")):
        text = sfq(*words)
        assert all(char.isprintable() or char == "\n" for char in text)
        assert shown in text


def test_usage_reads_all_pages(
    service: RunningService, sfq: Sfq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "PAGE", 2)
    _use(service, 3)
    assert len(json.loads(sfq("usage", "--by", "step", "--json"))["rows"]) == 3
    counted = service.traffic.requests
    before = counted["GET", "/v1/accounting", "2xx"]
    printed = sfq("usage", "--by", "step", "--csv")
    rows = csv.DictReader(io.StringIO(printed))
    assert sorted(row["step"] for row in rows) == ["/s0", "/s1", "/s2"]
    # a request is counted when it has been answered
    kind = "GET", "/v1/accounting", "2xx"
    waiting.until(lambda: counted[kind] >= before + 2, "the last to be counted")
    assert counted[kind] == before + 2


def test_usage_prints_the_csv_of_the_service(service: RunningService, sfq: Sfq) -> None:
    _use(service, 2)
    lease = service.queue.leases.held[0].id
    body: dict[str, JSON] = {"problem": example_bqm(), "purpose": "=HYPERLINK(0)"}
    service.ask("POST", "/v1/jobs", {**body, "idempotency_key": "k"}, lease=lease)
    service.until(lease, "Completed", 2)
    until = f"{datetime.now(UTC) + timedelta(minutes=2):%Y-%m-%dT%H:%M:%SZ}"
    for by in KEYS:
        path = f"/v1/accounting?by={by}&format=csv&until={until}"
        told = service.ask("GET", path).body.decode().replace("\r\n", "\n")
        assert sfq("usage", "--by", by, "--csv", "--until", until) == told
        header, row, *_ = csv.reader(io.StringIO(told))
        assert row[:2] == ["", until]
        # plain decimals
        assert not any(re.search(r"\de[+-]?\d|\.\d{7}", cell) for cell in row[3:])
        table = sfq("usage", "--by", by, "--until", until).split()
        assert {*header[2:]} >= {*table[: table.index("lost_qpu_seconds") + 1]}
    assert "'=HYPERLINK(0)" in sfq("usage", "--by", "step", "--csv")
