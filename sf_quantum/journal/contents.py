"""The contents of a folder as a digest, on this machine or with a shell on another machine."""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
from collections.abc import Iterator

#: largest number of entries in a folder; a larger folder has no digest
ENTRIES = 100_000


def digest(folder: str) -> str | None:
    """Digest the names and contents below a folder of this machine; reads its files.

    Links are followed, even out of the folder.

    :returns: the digest; ``None`` if the folder is missing, cannot be read, or has too many
        entries
    """
    lines: list[str] = []
    try:
        for line in _lines(folder):
            lines.append(line)
            if len(lines) > ENTRIES:
                return None
    except OSError:
        return None
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def digest_script(folder: str) -> str:
    """Return a shell command that prints a digest of a folder where the command runs.

    These digests differ from digests of :func:`digest`: compare only digests of one kind.
    The command prints nothing if the folder is missing or has too many entries.
    """
    return (
        f"cd {shlex.quote(folder)} 2>/dev/null || exit 0; "
        f'test "$(find -L . 2>/dev/null | head -n {ENTRIES + 1} | wc -l)" '
        f"-le {ENTRIES} || exit 0; "
        "{ find -L . -type d; "
        r"find -L . \( -type f -o -type l \) -exec sha1sum {} +; "
        "} 2>&1 | LC_ALL=C sort | sha1sum"
    )


def of_file(path: str) -> str:
    """Return the SHA-1 of a file's contents, as StreamFlow computes it for outputs.

    :raises OSError: if the file is missing or cannot be read
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        return "special"
    with open(path, "rb") as file:
        return hashlib.file_digest(file, _sha1).hexdigest()


def _sha1() -> hashlib._Hash:
    # like the checksums of StreamFlow and of CWL
    return hashlib.sha1(usedforsecurity=False)


def _lines(folder: str) -> Iterator[str]:
    """Yield a line per entry; links to folders are followed, but each folder is read once."""
    visited: set[tuple[int, int]] = set()
    for parent, folders, files in os.walk(folder, onerror=_raise, followlinks=True):
        relative = parent.removeprefix(folder)
        yield f"folder {relative!r}"
        folders.sort()  # the order decides which link to a folder is followed
        status = os.stat(parent)
        if (status.st_dev, status.st_ino) in visited:
            folders.clear()
            continue
        visited.add((status.st_dev, status.st_ino))
        for name in folders:
            path = os.path.join(parent, name)
            if os.path.islink(path):
                yield f"link {os.path.join(relative, name)!r} {os.readlink(path)!r}"
        for name in files:
            path = os.path.join(parent, name)
            exists = os.path.exists(path)  # else this is a dangling link
            content = of_file(path) if exists else os.readlink(path)
            yield f"file {os.path.join(relative, name)!r} {content!r}"


def _raise(error: OSError) -> None:
    raise error
