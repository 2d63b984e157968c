"""Replies of a vendor that cannot be true, kept for the service's operator.

The files are next to the service's state, and only the service's user can read them. Each
contains a line of JSON with the reason, and the reply. Their number and size are limited.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from sf_quantum.files import JSON

logger = logging.getLogger(__name__)
FOLDER = "vendor-evidence"
#: maximum number of files; the latest are kept
MAX_FILES = 20
#: maximum bytes of a reply; the first are kept
MAX_BYTES = 2**20


class Evidence:
    """The rejected replies of a vendor; thread-safe.

    :param name: name of the QPU, in log lines
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._folder: Path | None = None
        self._lock = threading.Lock()

    def keep_in(self, folder: Path) -> None:
        """Keep files in a subfolder of a folder."""
        self._folder = folder / FOLDER

    def keep(
        self, tag: str, reason: str, answer: str, more: Mapping[str, JSON] | None = None
    ) -> None:
        """Log that a reply was rejected, and keep the reply; never raises.

        A later rejected reply with the same tag replaces the file.

        :param tag: tag of the submission
        :param reason: reason for the rejection, in one line
        :param answer: text that the vendor sent, as far as it is known
        :param more: further data about the job
        """
        now = datetime.now(UTC)
        head = json.dumps(
            {
                "time": now.isoformat(timespec="seconds"),
                "qpu": self._name,
                "submission": tag,
                "reason": reason,
                "characters": len(answer),
                **(more or {}),
            }
        )
        where = "not kept"
        if self._folder is not None:
            path = self._folder / f"{re.sub(r'[^A-Za-z0-9-]', '_', tag)[:100]}.txt"
            try:
                with self._lock:
                    self._write(path, f"{head}\n{answer[:MAX_BYTES]}")
                where = f"kept in {path}"
            except OSError as error:
                where = f"not kept: {error.strerror}"
        text = "QPU %s: submission %s was not answered as it should be: %s; the answer is %s"
        logger.warning(text, self._name, tag, reason, where)

    def _write(self, path: Path, text: str) -> None:
        folder = path.parent
        folder.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(text.encode(errors="backslashreplace")[: 2 * MAX_BYTES])
        kept = sorted(folder.glob("*.txt"), key=lambda one: one.stat().st_mtime_ns)
        for old in kept[:-MAX_FILES]:
            with suppress(FileNotFoundError):
                old.unlink()
