"""The classes of leases of a site's jobs, by QOS, partition or priority."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from sf_quantum.protocol.leases import CLASSES


@dataclass(frozen=True)
class ClassRule:
    """A rule that gives a class to jobs of a QOS, of a partition, or from a priority up."""

    what: str
    value: str
    job_class: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a rule such as ``qos:urgent=production``.

        :raises ValueError: if the text is not a rule
        """
        match = re.fullmatch(r"(qos|partition|priority):([^=]+)=(\w+)", text)
        if match is None or match[3] not in CLASSES:
            raise ValueError(text)
        if match[1] == "priority":
            int(match[2])
        return cls(*match.groups())

    def fits(self, partition: str, qos: str, priority: str) -> bool:
        """Return whether the rule applies to a job."""
        if self.what == "priority":
            return int(priority) >= int(self.value)
        return self.value == (qos if self.what == "qos" else partition)


def class_of(
    rules: Sequence[ClassRule], partitions: str, qos: str, priority: str
) -> str | None:
    """Return a job's class: the lowest class that the rules give in any of its partitions.

    :param partitions: all partitions in which a pending job may run; Slurm includes
        partitions whose QOS or accounts would not let the job start
    """
    given = set()
    for partition in partitions.split(","):
        fitting = (rule for rule in rules if rule.fits(partition, qos, priority))
        given.add(next((rule.job_class for rule in fitting), None))
    if given == {None}:
        return None
    return max((class_ or CLASSES[-1] for class_ in given), key=CLASSES.index)
