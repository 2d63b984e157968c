"""``sfq token``: make a bearer token for a user of the QPU service."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from sf_quantum.errors import InputError


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.epilog = (
        "The token goes to standard output, once: the service keeps no more than its "
        "hash. Without --file the line for the tokens file goes to standard error. To "
        "take a token back, remove its line; a running service reads the file again."
    )
    parser.add_argument("user", help="whose token it is")
    parser.add_argument(
        "--admin", action="store_true", help="may see, cancel, open and close all"
    )
    parser.add_argument(
        "--file", type=Path, metavar="FILE", help="tokens file to add the line to"
    )


def run(args: argparse.Namespace) -> int:
    """Draw a token, print it, and write down its hash.

    :returns: 0
    :raises InputError: if the name is none, or the file is wrong or not writable
    """
    from sf_quantum.service.auth import Tokens, entry, new_token

    token = new_token()
    line = f"- {json.dumps(entry(args.user, token, admin=args.admin))}\n"
    if args.file is None:
        print(f"add to the tokens file: {line}", end="", file=sys.stderr)
    else:
        if args.file.exists():
            Tokens(args.file)  # refuses a file that no service would take
        _append(args.file, line)
    print(token)
    return 0


def _append(path: Path, line: str) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with open(descriptor, "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise InputError(f"{path}: cannot be written: {why}") from error
