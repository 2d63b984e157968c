"""Previews of runs of a StreamFlow file, without running it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sf_quantum.reporting import report
from sf_quantum.threads import in_thread
from sf_quantum.workflows.checks import check, refuse_problems

if TYPE_CHECKING:
    from sf_quantum.checking.preview import Preview


def preview(file: str | Path) -> Preview:
    """Return where each step of a StreamFlow file would run now, and the state of its QPUs.

    Nothing is submitted.

    :raises InputError: if the file has a problem, or its runs write no journal
    """
    refuse_problems(check(file))
    journals = report.journals_of(Path(file))
    from sf_quantum.checking import preview as previews

    # A notebook runs an event loop in this thread, and the preview needs another loop.
    return in_thread(partial(previews.preview, Path(file), journals)).result()
