"""Reading files with one-line errors, and replacing files atomically."""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TypeAlias, TypeGuard, cast

from sf_quantum.errors import InputError, QuantumError

JSON: TypeAlias = "dict[str, JSON] | list[JSON] | str | int | float | bool | None"
# A location in a file: ("classes", "limits", "test") or ("tokens", 2, "user").
KeyPath: TypeAlias = tuple[int | str, ...]
# Times and amounts up to this number can be added, rounded and plotted.
MAX_NUMBER = 1e12
# Deepest JSON that is read; Python's own functions fail at about 1,000.
MAX_NESTING = 200
# A bracket, or a string, so that brackets in strings are not counted. The string may be
# unterminated.
_BRACKETS_AND_TEXTS = re.compile(r"[\[\]{}]|\"(?:[^\"\\]|\\.)*\"?", re.DOTALL)
_DEPTH_CHANGES = {"[": 1, "{": 1, "]": -1, "}": -1}
# Errors of a path that is wrong on any machine; others, such as a full disk, are local.
_WRONG_PATH = {
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP),
    *(errno.EACCES, errno.EPERM, errno.EINVAL, errno.EROFS, errno.EEXIST),
}


@contextmanager
def replacing(path: str | Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Open a file that replaces ``path`` when the block ends without an error.

    Until then, and if the block fails, ``path`` is unchanged.

    :param private: whether only the file's owner may read it, as for secrets
    :raises QuantumError: see :func:`cannot_write`
    """
    with _temporary(Path(path)) as (file, temporary):
        with file:
            yield file
        if not private:
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)


@contextmanager
def _temporary(path: Path) -> Iterator[tuple[IO[bytes], str]]:
    """Yield a temporary file next to ``path``, and its name; finally remove the file."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: not a file; name a file that may be replaced")
        descriptor, temporary = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}."
        )
        try:
            yield os.fdopen(descriptor, "wb"), temporary
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
    except OSError as error:
        raise cannot_write(path, error) from error


def exists(path: Path) -> bool:
    """Return whether a path exists; ``Path.exists`` of Python 3.14 would hide all errors.

    :raises OSError: if the path cannot be examined, or the name is too long
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check_writable(path: str | Path) -> None:
    """Check that a file can be written, before anything expensive is computed.

    :raises QuantumError: see :func:`cannot_write`
    """
    with _temporary(Path(path)) as (file, _), file:
        file.write(b"\n")  # a full disk may still accept an empty file


def write_json(path: str | Path, content: JSON, indent: int | None = None) -> None:
    """Write JSON atomically.

    :param indent: spaces per level, for a file that people read; ``None`` writes one line
    :raises QuantumError: see :func:`cannot_write`
    """
    with replacing(path) as file:
        file.write(json.dumps(content, allow_nan=False, indent=indent).encode())
        file.write(b"\n")


def parse_json(text: str | bytes) -> JSON:
    """Parse JSON from outside, nested at most :data:`MAX_NESTING` deep.

    Code that later recurses over deeper JSON would raise ``RecursionError``, which is not a
    ``ValueError``.

    :raises DuplicateKey: if an object has a key twice
    :raises ValueError: if the text is not JSON in UTF-8, or is nested too deeply
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8-sig")
    check_nesting(text)
    return cast("JSON", json.loads(text, object_pairs_hook=unique))


class WrongJson(ValueError):
    """JSON that is rejected, though Python can read it, such as JSON nested too deeply."""


class DuplicateKey(WrongJson):
    """An object has a key twice; Python would use the last value."""


def unique(pairs: Sequence[tuple[str, JSON]]) -> dict[str, JSON]:
    """Make a JSON object from its pairs (``object_pairs_hook``).

    :raises DuplicateKey: if a key occurs twice, which has no defined meaning (RFC 8259, 4)
    """
    content = dict(pairs)
    if len(content) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise DuplicateKey(f"the key {key[:60]!r} stands twice in one object")
    return content


def check_nesting(text: str) -> None:
    """Reject JSON that is nested more than :data:`MAX_NESTING` deep.

    Python's own limit depends on its version, and later readers, such as an SDK, recurse
    over the content again.

    :raises ValueError: if the JSON is nested deeper
    """
    if text.count("[") + text.count("{") <= MAX_NESTING:
        return
    depth = deepest = 0
    for match in _BRACKETS_AND_TEXTS.finditer(text):
        depth += _DEPTH_CHANGES.get(match[0], 0)
        deepest = max(deepest, depth)
    if deepest > MAX_NESTING:
        raise WrongJson(f"nested more than {MAX_NESTING} deep")


def socket_in(url: str, folder: str | Path = "") -> str:
    """Complete the URL of a socket whose path is relative; return any other URL unchanged.

    :param folder: the folder that the path starts from, by default the current one
    """
    path = url.removeprefix("unix:")
    if path == url or not path or path.startswith("/"):
        return url
    return f"unix:{Path(folder).absolute() / Path(path).expanduser()}"


def read_json(path: str | Path, kind: str) -> dict[str, JSON]:
    """Read a JSON object.

    :param kind: the expected content ("problem", "samples"), for messages
    :raises InputError: if the file is missing, empty or not a JSON object
    """
    try:
        # some editors begin a file with a byte order mark
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise cannot_read(path, kind, error) from error
    try:
        content = parse_json(text)
    except ValueError as error:
        line = (
            f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        )
        why = getattr(error, "msg", str(error))
        raise InputError(
            f"{path}{line}: not JSON ({why}); expected a {kind} file"
        ) from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a {kind} file, a JSON object")
    return content


def cannot_read(path: str | Path, kind: str, error: Exception) -> InputError:
    """Return the error for a file that cannot be read, to raise ``from`` its cause."""
    why, remedy = "it is not text in UTF-8", "save it in UTF-8, or name another file"
    if isinstance(error, OSError):
        why, remedy = str(error.strerror), "name a readable file"
    elif isinstance(error, UnicodeDecodeError):
        why = f"{why} (byte 0x{error.object[error.start]:02x})"
    return InputError(f"{path}: cannot be read as {kind}: {why}; {remedy}")


def mapping(value: JSON) -> dict[str, JSON]:
    """Return the value if it is a mapping, otherwise an empty mapping."""
    return value if isinstance(value, dict) else {}


def listing(value: JSON) -> list[JSON]:
    """Return a list as it is, and another value as the only item; empty for ``None``."""
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def is_number(value: JSON) -> TypeGuard[int | float]:
    """Return whether a value is a number of at most :data:`MAX_NUMBER` in magnitude."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -MAX_NUMBER <= value <= MAX_NUMBER  # NaN is not in this range


def integer(value: JSON) -> int | None:
    """Return a whole number as an int; 5.0 is whole, as in JSON Schema. Otherwise ``None``."""
    return int(value) if is_number(value) and value == int(value) else None


def number(value: JSON) -> float:
    """Return the value as a float; 0 if it is not a number."""
    return float(value) if is_number(value) else 0.0


def number_or_null(value: JSON) -> int | float | None:
    """Return the value if it is a number, otherwise ``None``."""
    return value if is_number(value) else None


def describe_missing(error: Exception) -> str:
    """Describe what a file's content lacks, from the error that was raised on access."""
    return f"no {error}" if isinstance(error, KeyError) else str(error)


def cannot_write(path: Path, error: OSError) -> QuantumError:
    """Return the error for a file that cannot be written, to raise ``from`` its cause.

    :returns: an :class:`InputError` if the path is wrong; a plain :class:`QuantumError` if
        the machine is at fault, since the same input may work on another machine
    """
    what = f"{path}: cannot be written: {error.strerror or error}"
    if error.errno in _WRONG_PATH:
        return InputError(f"{what}; name an existing, writable folder")
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    right = "make room on this machine, or use another one" if full else "see its disk"
    return QuantumError(f"{what}; {right}")
