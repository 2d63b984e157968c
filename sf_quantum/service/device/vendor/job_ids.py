"""The submissions that a vendor's job ids belong to, and the times of the submissions.

If a vendor gave one id to two submissions, the second would get the result of the first. So
ids are kept in a file next to the service's state, which the service reads after a restart.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from sf_quantum.errors import InputError, QuantumError
from sf_quantum.files import JSON, replacing

logger = logging.getLogger(__name__)
#: maximum number of submissions; the latest are kept
MAX_SUBMISSIONS = 10_000
#: maximum characters of an id
MAX_ID = 255


class WrongId(InputError):
    """A vendor's job id is not a valid id, or belongs to another submission."""


@dataclass(frozen=True)
class _Begun:
    """The time when a submission was first sent, in seconds since the epoch and, if this
    process sent it, by the monotonic clock."""

    epoch: float
    monotonic: float | None = None


class VendorJobIds:
    """The submissions to a vendor, and its ids for them; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun: OrderedDict[str, _Begun] = OrderedDict()
        # tags of submissions, by a hash of the job id
        self._tags: OrderedDict[str, str] = OrderedDict()
        self._file: Path | None = None
        # lines since the file was last rewritten
        self._appended = 0

    def keep_in(self, file: Path) -> None:
        """Keep submissions in a file, and read the submissions before a restart from it."""
        with self._lock:
            self._file = file
            try:
                text = file.read_text(errors="replace") if file.exists() else ""
                for line in text.splitlines():
                    self._read(line.split(" "))
                self._rewrite(file)
            except (QuantumError, OSError) as error:
                logger.warning("%s: submissions are not remembered: %s", file, error)

    def _rewrite(self, file: Path) -> None:
        with replacing(file, private=True) as whole:
            whole.write("".join(self._lines()).encode())
        self._appended = 0

    def _read(self, words: list[str]) -> None:
        match words:  # a line that a crash has cut short matches no case
            case ["sent", tag, seconds, "."]:
                try:
                    self._begun[tag] = _Begun(float(seconds))
                except ValueError:
                    return
            case ["id", digest, tag, "."]:
                self._tags[digest] = tag
        self._forget()

    def _lines(self) -> list[str]:
        sent = [f"sent {tag} {one.epoch} .\n" for tag, one in self._begun.items()]
        return [*sent, *(f"id {key} {tag} .\n" for key, tag in self._tags.items())]

    def _forget(self) -> None:
        for entries in (self._begun, self._tags):
            while len(entries) > MAX_SUBMISSIONS:
                entries.popitem(last=False)

    def _append(self, line: str) -> None:
        self._forget()
        if self._file is None:
            return
        try:
            with self._file.open("a") as file:
                file.write(line)
            self._appended += 1
            if self._appended > 4 * MAX_SUBMISSIONS:
                self._rewrite(self._file)
        except (QuantumError, OSError) as error:
            logger.warning("%s: a submission is not kept: %s", self._file, error)

    def begin(self, tag: str) -> None:
        """Record that a submission is about to be sent, perhaps repeatedly."""
        with self._lock:
            if tag not in self._begun:
                begun = _Begun(time.time(), time.monotonic())
                self._begun[tag] = begun
                self._append(f"sent {tag} {begun.epoch} .\n")

    def seconds_since(self, tag: str) -> float | None:
        """Return the seconds since a submission was first sent; ``None`` if unknown."""
        with self._lock:
            begun = self._begun.get(tag)
        if begun is None:
            return None
        if begun.monotonic is not None:
            return time.monotonic() - begun.monotonic
        # The service was restarted after it sent the submission; the clock may have been
        # set back since then.
        seconds = time.time() - begun.epoch
        return seconds if seconds >= 0 else None

    def claim(self, job_id: JSON, tag: str) -> str:
        """Record the id that a vendor has given to a submission.

        :raises WrongId: if the id is not valid, or belongs to another submission
        """
        if not isinstance(job_id, str) or not job_id.isprintable():
            raise WrongId("the vendor's id of the job is not a printable text")
        if not 1 <= len(job_id) <= MAX_ID:
            detail = f"{len(job_id)} characters, 1 to {MAX_ID} are expected"
            raise WrongId(f"the vendor's id of the job has {detail}")
        digest = _digest(job_id)
        with self._lock:
            claimed_by = self._tags.get(digest)
            if claimed_by is None:
                self._tags[digest] = tag
                self._append(f"id {digest} {tag} .\n")
        if claimed_by not in (None, tag):
            detail = (
                "which is that of an earlier submission: its result would be that one's"
            )
            raise WrongId(f"the vendor gave the job the id {job_id}, {detail}")
        return job_id

    def is_other(self, job_id: JSON, tag: str) -> bool:
        """Whether an id belongs to a submission with another tag."""
        with self._lock:
            claimed_by = self._tags.get(_digest(str(job_id)))
        return claimed_by not in (None, tag)


def _digest(job_id: str) -> str:
    return hashlib.sha256(job_id.encode(errors="backslashreplace")).hexdigest()[:32]
