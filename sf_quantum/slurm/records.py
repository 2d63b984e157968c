"""The text of ``scontrol show job``, with and without ``--oneliner``.

A job's name, comment, command and folders are *free texts*: they are printed unescaped, and
may look like fields (``--job-name="a JobState=COMPLETED"``). Slurm prints the name first,
then, from ``UserId`` on, the fields that it fills in itself, and then, from ``Command`` on,
the other free texts. So fields are searched for between ``UserId`` and ``Command``; a record
whose name imitates these two is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sf_quantum.slurm.counts import epoch, wait_status

#: the comment that Slurm prints for a job without a comment
NO_COMMENT = "(null)"
# beginning of a record, and fields by which its parts are recognised
_HEAD = re.compile(r"^JobId=\d+\b", re.MULTILINE)
_NAME = re.compile(r"\sJobName=")
_OWNER = re.compile(r"\sUserId=[^\n()=]*\(\d+\) GroupId=[^\n()=]*\(\d+\)\s")
_FREE_TEXT = re.compile(r"\s(?:Command|WorkDir|Comment)=")
_FREE_TEXT_OR_HEAD = re.compile(rf"{_FREE_TEXT.pattern}|{_HEAD.pattern}", re.MULTILINE)
_FIELD = re.compile(r"(?:^|\s)([\w/:]+)=(\S*)")
_COMMENT = re.compile(r"\sComment=(.*?)(?=\s+(?:StdErr|StdIn|StdOut|Power)=|\Z)", re.S)
# Requests for resources follow the free texts, each on a line or between spaces.
_REQUEST = re.compile(r"\s(TresPer(?:Node|Socket|Task|Job)|MemPerTres)=(\S+)(?=\s|\Z)")
# The option --details adds a line for each group of nodes on which the job has the same
# resources.
_SHARE = re.compile(r"\sNodes=(\S+) CPU_IDs=(\S*) Mem=(\d+) GRES=(\S*)")
# texts that stand for no value
_EMPTY = ("(null)", "N/A")


@dataclass(frozen=True)
class Share:
    """Resources that a job has on each node of a group.

    :param nodes: expression with the nodes' names, such as ``c[1-3]``
    :param cpus: number of CPUs
    :param memory: memory in MB; 0 where Slurm does not allocate memory
    :param gres: list in Slurm's format, such as ``gpu:2(IDX:0-1)``
    """

    nodes: str
    cpus: int
    memory: int
    gres: str


@dataclass(frozen=True)
class JobRecord:
    """A job, or a task of an array.

    :param task: index of a task in its array
    :param shares: resources by node, if the record has them (``--details``)
    :param comment: the comment; empty if another free text imitates a comment;
        :data:`NO_COMMENT` if the record has none
    :param fields: fields that Slurm fills in itself and that have a value
    """

    job: str
    array: str | None
    task: str | None
    state: str
    comment: str
    fields: Mapping[str, str]
    shares: tuple[Share, ...]

    @property
    def reason(self) -> str:
        return self.fields.get("Reason", "")

    @property
    def exit_code(self) -> int:
        return self._wait_status >> 8

    @property
    def signal(self) -> int:
        """The number of the signal that ended the job; 0 if none did."""
        return self._wait_status & 0x7F

    @property
    def _wait_status(self) -> int:
        return wait_status(self.fields.get("ExitCode", "")) or 0

    @property
    def started(self) -> float | None:
        return epoch(self.fields.get("StartTime", ""))

    @property
    def ended(self) -> float | None:
        return epoch(self.fields.get("EndTime", ""))

    @property
    def restarts(self) -> int:
        restarts = self.fields.get("Restarts", "")
        return int(restarts) if restarts.isdecimal() else 0


def read(text: str) -> list[JobRecord]:
    """Read the records in the output; leave out records that a free text makes ambiguous."""
    records = (_record(*parts) for parts in _parts(text))
    return [record for record in records if record is not None]


def _parts(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield three parts of each record: ids and name, Slurm's own fields, free texts."""
    owners, ending = [match.start() for match in _OWNER.finditer(text)], _FREE_TEXT
    if not owners:  # the records may lack UserId, being cut short
        owners = [match.end() for match in _HEAD.finditer(text)]
        ending = _FREE_TEXT_OR_HEAD
    after = 0
    for owner, next_owner in zip(owners, [*owners[1:], len(text)], strict=False):
        heads = [match.start() for match in _HEAD.finditer(text, after, owner)]
        # A second head is in the job's name, or in a free text of the previous record.
        is_record = bool(heads) and (len(heads) == 1 or after == 0)
        match = ending.search(text, owner)
        after = match.start() if match else len(text)
        rest = _HEAD.search(text, after)
        if is_record and after <= next_owner:
            free = text[after : rest.start() if rest else len(text)]
            yield text[heads[0] : owner], text[owner:after], free


def _record(head: str, body: str, free: str) -> JobRecord | None:
    """Read the parts of a record; ``None`` if they are not a job's."""
    pairs = _FIELD.findall(body)
    if [key for key, _ in pairs].count("JobState") != 1:
        return None
    # A free text may look like a request; Slurm's own request is the last one.
    fields = dict([*pairs, *_REQUEST.findall(free)])
    ids = dict(_FIELD.findall(_NAME.split(head, maxsplit=1)[0]))
    return JobRecord(
        ids["JobId"],
        ids.get("ArrayJobId", fields.get("ArrayJobId")),
        ids.get("ArrayTaskId"),
        fields["JobState"],
        _comment(free),
        {key: value for key, value in fields.items() if value not in _EMPTY},
        tuple(
            Share(nodes, _cpus(cpus), int(memory), gres)
            for nodes, cpus, memory, gres in _SHARE.findall(body)
        ),
    )


def _cpus(indices: str) -> int:
    """Count the CPUs in a list such as ``0-3,6``."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", indices)
    return sum(int(last or first) - int(first) + 1 for first, last in ranges)


def _comment(free: str) -> str:
    comments = _COMMENT.findall(free)
    if len(comments) > 1:
        return ""
    return comments[0].strip() if comments else NO_COMMENT
