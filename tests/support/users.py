"""Users of a service that asks for bearer tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from sf_quantum.cli import main

USERS = ("ann", "bob", "operator")


def give_tokens(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Write a token into a file for each user, and ``tokens`` for the service."""
    for user in USERS:
        admin = ["--admin"] if user == "operator" else []
        assert main(["token", user, *admin, "--tokens", str(folder / "tokens")]) == 0
        (folder / user).write_text(capsys.readouterr().out)
        (folder / user).chmod(0o600)
