"""The results of a job's circuits in IQM's two forms: counts, and the bits of each shot."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise, repeat

from sf_quantum.files import JSON

Keys = Sequence[tuple[str, int]]


def counters(result: str) -> list[dict[str, int]]:
    """Read the counts of each circuit of a job from its result."""
    content = json.loads(result)
    listed: list[dict[str, int]] = content.get("counters") or [content["counter"]]
    return listed


def counts(keys: Keys, counter: Mapping[str, int]) -> dict[str, JSON]:
    """Return the counts by bit string; the first measurement's bits are first."""
    return {
        "measurement_keys": [key for key, _ in keys],
        "counts": {_bits(word): count for word, count in counter.items()},
    }


def reads(keys: Keys, counter: Mapping[str, int], seed: str) -> str:
    """List the bits of each shot, by the key of the measurement, as JSON text.

    The device only counts bit strings, so the shots are in a random order; the same seed
    gives the same order. For all measurements, the order of the shots is the same.
    """
    words = [_bits(word) for word in counter]
    shots = [*chain(*map(repeat, range(len(words)), counter.values()))]
    random.Random(seed).shuffle(shots)
    ends = [0, *accumulate(bits for _, bits in keys)]
    parts = []
    for (key, _), (begin, end) in zip(keys, pairwise(ends), strict=True):
        # the text of each distinct bit string; below, texts are joined in the shots' order
        texts = [f"[{','.join(word[begin:end])}]" for word in words]
        parts.append(f"{json.dumps(key)}: [{','.join(map(texts.__getitem__, shots))}]")
    return f"{{{', '.join(parts)}}}"


def _bits(word: str) -> str:
    return word.replace(" ", "")[::-1]
