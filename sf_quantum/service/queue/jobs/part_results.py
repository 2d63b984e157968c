"""The results of a job's circuits or BQMs on disk: of finished slices, or of the whole job."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from sf_quantum.files import listing, mapping
from sf_quantum.protocol.values import count
from sf_quantum.service.store.store import Store

_START = re.compile(r'\s*\{\s*"counters?"\s*:\s*(\[?)\s*')
_SETS = re.compile(r'\s*\{\s*"sample_sets"\s*:\s*\[\s*')
_NEXT = re.compile(r"\s*,?\s*")


def finished(store: Store, number: int, first: int, most: int) -> list[str]:
    """Read the counts or sample sets of circuits or BQMs, each as a line of JSON; blocks.

    :param first: index of the first circuit or BQM to read
    :param most: number of characters after which no further line is added
    """
    lines: list[str] = []
    characters = 0
    for index, text in enumerate(_all_results(store, number, first)):
        if index >= first:
            lines.append(text.replace("\r", " ").replace("\n", " "))
            characters += len(text)
            if characters >= most:
                break
    return lines


def _all_results(store: Store, number: int, first: int) -> Iterator[str]:
    """Yield the result of each circuit or BQM; empty texts for slices before ``first``."""
    if (result := store.jobs.result(number)) is not None:
        yield from _split(result)
        return
    items_before = 0
    for part, info in enumerate(store.slices.infos(number)):
        # a slice without a number of items has part of the shots of each item, so no item
        # has finished
        items = info.get("circuits", info.get("problems"))
        if (items := count(items)) is None:
            return
        items_before += items
        if items_before <= first:
            yield from [""] * items
        elif (text := store.slices.text(number, part)) is not None:
            yield from _split(text)
        else:  # the job has ended meanwhile, and its slices were merged and deleted
            return


def _split(text: str) -> Iterator[str]:
    """Split a result, if possible without parsing, which would delay other threads."""
    if (sets := _SETS.match(text)) is not None:
        yield from _split_sample_sets(text, sets.end())
        return
    if text.startswith('{"type"'):  # a single BQM's result is one part
        yield text
        return
    if (start := _START.match(text)) is None:
        content = mapping(json.loads(text))
        counters = listing(content.get("counters") or content.get("counter"))
        yield from map(json.dumps, counters)
        return
    position = start.end()
    # counts by bit string contain no further braces
    while text.startswith("{", position) and (end := text.find("}", position) + 1):
        yield text[position:end]
        if not start[1]:
            return
        separator = _NEXT.match(text, end)
        position = separator.end() if separator else end


def _split_sample_sets(text: str, position: int) -> Iterator[str]:
    """Split a list of sample sets, by parsing one sample set at a time."""
    decoder = json.JSONDecoder()
    while text.startswith("{", position):
        _, end = decoder.raw_decode(text, position)
        yield text[position:end]
        separator = _NEXT.match(text, end)
        position = separator.end() if separator else end
