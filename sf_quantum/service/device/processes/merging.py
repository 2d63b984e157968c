"""Merges the results of a job's slices, in a separate process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, listing, mapping
from sf_quantum.service.device.processes.process_pool import ask


def merged(texts: Sequence[str], *, by_circuit: bool = False) -> str:
    """Merge results: JSON texts of sample sets, ``{"counter"}``, ``{"counters"}`` or
    ``{"sample_sets"}``.

    Blocks.

    :param by_circuit: whether the slices have different circuits or BQMs, not different shots
    :raises InputError: if the results cannot be merged
    """
    arguments: dict[str, JSON] = {"by_circuit": by_circuit}
    answer = ask("merge", arguments, f"[{', '.join(texts)}]", lambda: False)
    if answer is None:
        raise InputError("the slices of its result could not be merged")
    return answer.text


def merge(
    results: Sequence[dict[str, JSON]], *, by_circuit: bool = False
) -> dict[str, JSON]:
    """Merge parsed results."""
    if by_circuit and all("sample_sets" in one for one in results):
        return {"sample_sets": [each for one in results for each in _sets(one)]}
    if by_circuit:
        lists = (listing(one.get("counters") or one.get("counter")) for one in results)
        return {"counters": [each for some in lists for each in some]}
    if all("counter" in one for one in results):
        return {"counter": _sum([one["counter"] for one in results])}
    if all("counters" in one for one in results):
        batches = [listing(one["counters"]) for one in results]
        return {"counters": [_sum(each) for each in zip(*batches, strict=True)]}
    from dimod import SampleSet, concatenate

    # the methods of SampleSet are untyped in dimod
    sets = [SampleSet.from_serializable({**one, "info": {}}) for one in results]  # type: ignore[no-untyped-call]
    whole: dict[str, JSON] = concatenate(sets).to_serializable()  # type: ignore[no-untyped-call]
    whole.pop("info", None)
    return whole


def _sum(counters: Sequence[JSON]) -> dict[str, JSON]:
    total = Counter[str]()
    for counter in counters:
        for bits, count in mapping(counter).items():
            total[bits] += int(count) if isinstance(count, int | float) else 0
    return dict(sorted(total.items()))


def _sets(result: dict[str, JSON]) -> list[JSON]:
    return listing(result["sample_sets"])
