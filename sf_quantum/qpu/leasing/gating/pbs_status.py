"""Program that prints the jobs of an OpenPBS server as JSON.

Unlike ``qstat``, it does not print the environment variables of jobs, in which users may put
any text. It is a separate process, since PBS's library may wait for the server without limit.
It imports no other package, since it is started for each look.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

ATTRIBUTES = (
    *("Job_Owner", "euser", "job_state", "queue", "Hold_Types", "Resource_List"),
    *("Execution_Time", "array_state_count", "comment"),
)
_UNKNOWN_JOB, _HISTORY_JOB = 15001, 15139


class _Attribute(ctypes.Structure):
    """``struct attrl`` of ``pbs_ifl.h``."""


_Attribute._fields_ = [
    ("next", ctypes.POINTER(_Attribute)),
    ("name", ctypes.c_char_p),
    ("resource", ctypes.c_char_p),
    ("value", ctypes.c_char_p),
    ("op", ctypes.c_int),
]


class _Status(ctypes.Structure):
    """``struct batch_status`` of ``pbs_ifl.h``."""


_Status._fields_ = [
    ("next", ctypes.POINTER(_Status)),
    ("name", ctypes.c_char_p),
    ("attributes", ctypes.POINTER(_Attribute)),
    ("text", ctypes.c_char_p),
]


def _library() -> Any:
    """Load the library of the PBS that ``pbs.conf`` names."""
    conf, settings = os.environ.get("PBS_CONF_FILE", "/etc/pbs.conf"), {}
    try:
        with open(conf) as lines:
            for line in lines:
                key, _, value = line.strip().partition("=")
                settings[key] = value.strip("'\"")
    except OSError as error:
        sys.exit(f"cannot read {conf}: {error.strerror}")
    root = os.environ.get("PBS_EXEC") or settings.get("PBS_EXEC", "/opt/pbs")
    try:
        library = ctypes.CDLL(os.path.join(root, "lib", "libpbs.so"))
    except OSError as error:
        sys.exit(str(error))
    for name in ("pbs_statjob", "pbs_statserver"):
        getattr(library, name).restype = ctypes.POINTER(_Status)
    library.pbs_geterrmsg.restype = ctypes.c_char_p
    getattr(library, "__pbs_errno_location").restype = ctypes.POINTER(ctypes.c_int)
    return library


def _records(first: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    while first:
        record: dict[str, Any] = {}
        attribute = first.contents.attributes
        while attribute:
            fields = attribute.contents
            name, value = _text(fields.name), _text(fields.value)
            if fields.resource:
                record.setdefault(name, {})[_text(fields.resource)] = value
            else:
                record[name] = value
            attribute = fields.next
        yield _text(first.contents.name), record
        first = first.contents.next


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


def main(job: str | None) -> None:
    """Print the server's name and its unfinished jobs, or one of these jobs."""
    library = _library()
    failed = getattr(library, "__pbs_errno_location")
    connection = library.pbs_connect(None)
    if connection < 0:
        sys.exit(f"no server of PBS answers (error {failed().contents.value})")

    def answer(status: Any) -> dict[str, dict[str, Any]]:
        code = failed().contents.value
        if not status and code not in (0, _UNKNOWN_JOB, _HISTORY_JOB):
            why = _text(library.pbs_geterrmsg(connection)) or f"error {code}"
            sys.exit(f"the server of PBS says: {why}")
        return dict(_records(status))

    first, *others = (name.encode() for name in ATTRIBUTES)
    attributes = _Attribute(None, first, None, b"", 0)
    for name in others:
        attributes = _Attribute(ctypes.pointer(attributes), name, None, b"", 0)
    servers = answer(library.pbs_statserver(connection, None, None, None))
    failed().contents.value = 0
    chosen = None if job is None else job.encode()
    jobs = answer(
        library.pbs_statjob(connection, chosen, ctypes.byref(attributes), None)
    )
    library.pbs_disconnect(connection)
    json.dump({"servers": [*servers], "jobs": jobs}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
