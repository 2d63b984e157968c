"""The limits on the jobs of a batch system that have or request a QPU at the same time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True)
class QpuLimits:
    """The limits on jobs that request a QPU, or have its lease, at the same time.

    :param count: largest number of jobs
    :param share: largest number of one user's jobs, while other users wait
    """

    qpu: str
    count: int
    share: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``NAME=COUNT:SHARE``.

        :raises ValueError: if the text has another form
        """
        match = re.fullmatch(r"(\w+)=(\d{1,9}):(\d{1,9})", text)
        if match is None:
            raise ValueError(text)
        return cls(match[1], int(match[2]), int(match[3]))
