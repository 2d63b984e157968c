"""The purpose of a job or a lease: a step of a workflow's run, or any text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

# RUN:/step/tag or /step/tag, as the connectors write it; RUN is the name of a journal
_OF_WORKFLOW = re.compile(r"(?:([0-9][^:]*Z-[0-9][^:]*):)?(/.*)", re.DOTALL)


@dataclass(frozen=True)
class Purpose:
    """A parsed purpose.

    :param run: the name of the run's journal
    :param step: of the workflow, or the whole text of another purpose
    """

    run: str | None
    step: str

    @classmethod
    @lru_cache(1024)
    def parse(cls, text: str) -> Self:
        """Read the text that a client sent."""
        match = _OF_WORKFLOW.fullmatch(text)
        if match is None:
            return cls(None, text)
        run, job = match.groups()
        return cls(run, job.rstrip("0123456789.").rstrip("/"))
