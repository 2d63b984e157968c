"""Times on the command line: in the zone of the person who types them, unless they have one."""

from __future__ import annotations

import time
from argparse import ArgumentTypeError
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from sf_quantum.cli import parser_for
from sf_quantum.cli.qpu.service import format_time, future_time, past_time

ZONES = ("UTC", "Europe/Rome", "Asia/Kolkata", "America/New_York", "Pacific/Auckland")


@pytest.fixture
def in_zone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the time zone of this process."""

    def use(zone: str) -> None:
        monkeypatch.setenv("TZ", zone)
        time.tzset()

    yield use
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("month", [1, 7])
def test_a_time_without_a_zone_is_local(
    in_zone: Callable[[str], None], zone: str, month: int
) -> None:
    in_zone(zone)
    expected = time.mktime((2026, month, 21, 16, 0, 0, 0, 0, -1))
    for parse in (future_time, past_time):
        assert parse(f"2026-{month:02}-21T16:00") == expected
    assert format_time(expected).endswith("Z")


@pytest.mark.parametrize("zone", ZONES)
def test_a_local_time_that_is_not_single_is_refused(
    in_zone: Callable[[str], None], zone: str
) -> None:
    in_zone(zone)
    instants = defaultdict[datetime, list[datetime]](list)
    quarter, now = timedelta(minutes=15), datetime(2025, 12, 30, tzinfo=UTC)
    while now.year < 2027:
        instants[now.astimezone(ZoneInfo(zone)).replace(tzinfo=None)].append(now)
        now += quarter
    local = datetime(2026, 1, 1)
    # Of most days, two times are enough; of Sundays, on which clocks change, all.
    while local.year < 2027:
        text = local.isoformat(timespec="minutes")
        match instants[local]:
            case [single]:
                assert future_time(text) == single.timestamp()
            case several:
                with pytest.raises(ArgumentTypeError, match="are changed then") as why:
                    future_time(text)
                first, second = str(why.value).partition("; write ")[2].split(" or ")
                meant = [datetime.fromisoformat(one) for one in (first, second)]
                if several:
                    assert meant == several
                # What is proposed is understood, an hour apart.
                assert future_time(second) - future_time(first) == 3600.0
        local += quarter if local.weekday() == 6 else timedelta(hours=12)


@pytest.mark.parametrize("hours", [-11, -5, 0, 1, 13])
def test_a_time_with_a_zone_is_the_same_everywhere(
    in_zone: Callable[[str], None], hours: int
) -> None:
    there = datetime(2026, 3, 1, 16, tzinfo=timezone(timedelta(hours=hours)))
    for zone in ZONES:
        in_zone(zone)
        assert future_time(there.isoformat()) == there.timestamp()
        assert future_time("2026-03-01T16:00Z") == future_time("2026-03-01T16:00+00:00")


@pytest.mark.parametrize("command", ["admin", "usage"])
def test_the_help_says_the_zone(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parser_for([command]).parse_args([command, "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "2026-11-21T16:00 in the time zone of this machine (TZ)" in text
