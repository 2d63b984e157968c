"""``sfq token``: create a bearer token for a user of the QPU service."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, cannot_write, listing


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "The token is printed to standard output once; the tokens file holds only its "
        "hash. Without --tokens, the line for the tokens file is printed to standard error. "
        "To revoke a token, remove its line; a running service reads the file again."
    )
    add = parser.add_argument
    add("user", help="the user's name")
    add("--admin", action="store_true", help="give the user all rights of an admin")
    add("--tokens", type=Path, metavar="FILE", help="tokens file to add the line to")


def run(args: argparse.Namespace) -> int:
    """Create a token, store its hash, and print the token."""
    from sf_quantum.service.http.tokens import new_token, token_entry

    token = new_token()
    try:
        line = f"- {json.dumps(token_entry(args.user, token, admin=args.admin))}\n"
    except InputError as error:
        raise InputError(
            f"user {args.user!r}: expected 1 to 64 letters, digits or any of _ . @ -"
        ) from error
    if args.tokens is None:
        print(f"add to the tokens file: {line}", end="", file=sys.stderr)
    else:
        path = Path(os.path.realpath(args.tokens))  # do not replace a symbolic link
        try:
            with _lock(path):
                _replace(path, _add_line(path, line))
        except OSError as error:
            raise cannot_write(path, error) from error
    print(token)
    return 0


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Lock the file against concurrent additions; create it if it is missing."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            # If the previous holder of the lock has replaced the file, lock the new file.
            if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
                yield
                return
        finally:
            os.close(file)


def _add_line(path: Path, line: str) -> str:
    """Return a tokens file's text with a line added; reformat the text only if necessary."""
    from sf_quantum import yaml
    from sf_quantum.service.http.tokens import Tokens
    from sf_quantum.validation import check_private

    content = yaml.read(path, "tokens")
    if content is None:
        check_private(path)
        content = []
    else:
        Tokens(path)  # raises an error if the service would refuse the file
    if not isinstance(content, list):
        raise InputError(f"{path}: expected a list")
    wanted: list[JSON] = [*content, *listing(yaml.parse(line).content)]
    text = path.read_text("utf-8")
    if text and not text.endswith("\n"):
        text += "\n"
    with suppress(yaml.NotYamlError):
        if yaml.parse(text + line).content == wanted:
            return text + line
    # The file is `[]`, or in another style to which no line can be appended.
    return "".join(f"- {json.dumps(entry)}\n" for entry in wanted)


def _replace(path: Path, text: str) -> None:
    """Replace a file atomically, and keep its owner, its group and, up to 0640, its mode."""
    # mkstemp creates the file with mode 0600
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            # keep owner, group and mode, so that the service can still read the file
            with suppress(FileNotFoundError):
                old_status, new_status = os.stat(path), os.fstat(descriptor)
                if (old_status.st_uid, old_status.st_gid) != (
                    new_status.st_uid,
                    new_status.st_gid,
                ):
                    os.fchown(descriptor, old_status.st_uid, old_status.st_gid)
                os.fchmod(descriptor, old_status.st_mode & 0o640)
        os.replace(temporary, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
