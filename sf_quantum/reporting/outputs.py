"""The outputs of a run, from StreamFlow's log."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from sf_quantum.files import JSON, mapping, parse_json
from sf_quantum.journal import WRITING
from sf_quantum.text import shortened

# Maximum number of shown items of a list, and of shown characters of a value.
SHOWN, CHARACTERS = 3, 100
_WRITTEN = re.compile(rf'\d.*? INFO +{WRITING} (".*")$')
# The outputs, the only JSON object in the log that has separate lines.
_OBJECT = re.compile(r"^\{(?:\}|\n.*?^\})$", re.DOTALL | re.MULTILINE)


def read(log: Path) -> dict[str, JSON]:
    """Read the outputs of a completed workflow; empty if the log lacks them."""
    try:
        *_, last = _OBJECT.findall(log.read_text(encoding="utf-8", errors="replace"))
        return mapping(parse_json(last))
    except (OSError, ValueError):
        return {}


def left_over(log: Path) -> str:
    """Return a remark on outputs of earlier runs that the latest run did not write.

    Users would take such files for results of the latest run, even if that run has failed.

    :param log: StreamFlow's log of the latest run, next to the logs of earlier runs
    :returns: one line; empty if there are no such outputs
    """
    latest, folder = {*_paths(read(log))}, log.parent.resolve()
    earlier = dict.fromkeys(p for one in _earlier(log) for p in _paths(read(one)))
    left: list[JSON] = [
        {"path": str(path)}
        for path in earlier
        if path not in latest and path.is_relative_to(folder) and path.exists()
    ]
    what = (
        f"remark: {log.parent} has outputs of earlier runs that this run did not write"
    )
    return f"{what}: {_shown(left)}" if left else ""


def written_earlier(log: Path) -> set[Path]:
    """Find the files that earlier runs than the latest have written, even failed runs.

    :param log: StreamFlow's log of the latest run, next to the logs of earlier runs
    """
    paths: set[Path] = set()
    for one in _earlier(log):
        paths.update(_paths(read(one)))
        # line by line, since a log may be large
        with suppress(OSError), one.open(encoding="utf-8", errors="replace") as lines:
            matches = filter(None, map(_WRITTEN.match, lines))
            paths.update(Path(json.loads(match[1])) for match in matches)
    return paths


def _earlier(log: Path) -> list[Path]:
    return sorted(log.parent.glob(f"{log.name}.[1-9]"))


def _paths(value: JSON) -> Iterator[Path]:
    """Yield the paths of the files and folders in outputs."""
    content = mapping(value)
    if content.get("class") in ("File", "Directory") and "path" in content:
        yield Path(str(content["path"])).resolve()
    for part in [*content.values(), *(value if isinstance(value, list) else ())]:
        yield from _paths(part)


def lines(outputs: Mapping[str, JSON]) -> list[str]:
    """Return one line for each output: the paths of its files, or its value."""
    return [f"{name}: {_shown(value)}" for name, value in outputs.items()]


def _shown(value: JSON) -> str:
    if isinstance(value, list):
        more = len(value) - SHOWN
        left_out = f" and {more} more" if more > 0 else ""
        return f"{', '.join(map(_shown, value[:SHOWN]))}{left_out}" if value else "[]"
    path = mapping(value).get("path")
    if isinstance(path, str):
        below = Path(path).is_relative_to(Path.cwd())
        return os.path.relpath(path) if below else path
    return shortened(json.dumps(value), CHARACTERS)
