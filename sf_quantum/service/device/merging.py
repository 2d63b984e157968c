"""Merges the results of a job's slices, in a process of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.service.device.processes import ask


def merged(texts: Sequence[str]) -> str:
    """Merge results: JSON texts of sample sets, or of ``{"counter"}``; blocks.

    :raises InputError: if they cannot be merged
    """
    answer = ask("merge", {}, f"[{', '.join(texts)}]", lambda: False)
    if answer is None:
        raise InputError("the slices of its result could not be merged")
    return answer.text


def merge(results: Sequence[dict[str, JSON]]) -> dict[str, JSON]:
    """Merge parsed results."""
    if all("counter" in one for one in results):
        total = Counter[str]()
        for one in results:
            counter = one["counter"]
            for bits, count in (counter if isinstance(counter, dict) else {}).items():
                total[bits] += int(count) if isinstance(count, int | float) else 0
        return {"counter": dict(sorted(total.items()))}
    from dimod import SampleSet, concatenate

    # the methods of SampleSet are untyped in dimod
    sets = [SampleSet.from_serializable({**one, "info": {}}) for one in results]  # type: ignore[no-untyped-call]
    whole: dict[str, JSON] = concatenate(sets).to_serializable()  # type: ignore[no-untyped-call]
    whole.pop("info", None)
    return whole
