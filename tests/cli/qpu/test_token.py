"""``sfq token --tokens``: the file is one that a service takes, after as before."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from sf_quantum.cli import main
from sf_quantum.service.http.tokens import Tokens, token_entry

OLD = json.dumps(token_entry("ada", "t", admin=False))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "tokens.yml"
    made.touch(0o600)
    return made


@pytest.mark.parametrize(
    ("text", "users"),
    [
        ("", ["eve"]),
        ("# none yet", ["eve"]),
        ("[]", ["eve"]),
        ("[]\n", ["eve"]),
        (f"- {OLD}", ["ada", "eve"]),
        (f"# hers\n- {OLD}\n", ["ada", "eve"]),
        (f"[{OLD}]\n", ["ada", "eve"]),
        (f"  - {OLD}\n", ["ada", "eve"]),
    ],
)
def test_a_token_is_added_to_any_list(path: Path, text: str, users: list[str]) -> None:
    path.write_text(text)
    assert main(["token", "eve", "--tokens", str(path)]) == 0
    Tokens(path)
    assert [entry["user"] for entry in yaml.safe_load(path.read_text())] == users
    assert path.read_text().startswith("#") == text.startswith("#")
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("user", ["", "a b", "x" * 65])
def test_a_name_that_is_none_leaves_no_file(
    path: Path, user: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path.unlink()
    assert main(["token", user, "--tokens", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"sfq token: user {user!r}: expected 1 to 64 letters, digits or any of _ . @ -\n"
    )
    assert not path.exists()


def test_many_at_once_lose_no_line(path: Path) -> None:
    path.unlink()
    users = [f"user{number}" for number in range(16)]
    with ThreadPoolExecutor(len(users)) as threads:
        added = threads.map(lambda u: main(["token", u, "--tokens", str(path)]), users)
        assert not any(added)
    known = [entry["user"] for entry in yaml.safe_load(path.read_text())]
    assert sorted(known) == sorted(users)
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["{}\n", "false\n", "''\n", "a: 1\n", "- [\n"])
def test_what_is_no_list_stays_as_it_is(
    path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path.write_text(text)
    assert main(["token", "eve", "--tokens", str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert path.read_text() == text


def test_a_link_stays_one_and_the_group_may_still_read(
    path: Path, tmp_path: Path
) -> None:
    path.chmod(0o640)
    link = tmp_path / "link.yml"
    link.symlink_to(path)
    assert main(["token", "eve", "--tokens", str(link)]) == 0
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert "eve" in path.read_text()
