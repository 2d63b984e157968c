"""Pauses between attempts: their bounds, and that they differ from client to client."""

from __future__ import annotations

from itertools import islice

import pytest

from sf_quantum import backoff
from sf_quantum.backoff import Backoff

KNOWN = [value for value in vars(backoff).values() if isinstance(value, Backoff)]


def first(pauses: Backoff, number: int) -> list[float]:
    return list(islice(pauses.pauses(), number))


@pytest.mark.parametrize("pauses", KNOWN, ids=str)
def test_pauses_grow_within_their_bounds(pauses: Backoff) -> None:
    bounds = first(
        Backoff(
            pauses.first_seconds, pauses.longest_seconds, pauses.growth, jitter=0.0
        ),
        100,
    )
    assert bounds == sorted(bounds)
    assert (bounds[0], bounds[-1]) == (pauses.first_seconds, pauses.longest_seconds)
    for _ in range(20):
        for pause, bound in zip(first(pauses, 100), bounds, strict=True):
            # at least half, so that nobody who was refused asks again at once
            assert bound / 2 <= (1 - pauses.jitter) * bound <= pause <= bound


def test_clients_do_not_come_back_together() -> None:
    pauses = Backoff(1.0, 1.0)
    drawn = [first(pauses, 1)[0] for _ in range(1000)]
    # a tenth of the range has a tenth of them: 100, with a deviation below 10
    by_tenth = [sum(int((pause - 0.5) * 20) == n for pause in drawn) for n in range(10)]
    assert sum(by_tenth) == len(drawn)
    assert min(by_tenth) > 30
    assert max(by_tenth) < 200


def test_alone_there_is_nothing_to_draw() -> None:
    assert first(Backoff(1.0, 5.0, jitter=0.0), 5) == [1.0, 2.0, 4.0, 5.0, 5.0]
