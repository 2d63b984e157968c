"""Who sends a request: tokens and MUNGE credentials that hold, and those that do not."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.requests import HTTPConnection

from sf_quantum.cli import main
from sf_quantum.errors import InputError, QpuError
from sf_quantum.net import munge
from sf_quantum.service.domain.jobs import Identity
from sf_quantum.service.http import auth
from sf_quantum.service.http import tokens as tokens_module
from sf_quantum.service.http.auth import Authenticate, AuthError, Munge, Unauthorized
from sf_quantum.service.http.tokens import (
    MungeOrTokens,
    TokenEntry,
    Tokens,
    read_tokens,
    token_entry,
)

pytestmark = pytest.mark.devices("sfq", "dwave", "acme")

# moves the time that a process sees
SHIM = """
#include <stdlib.h>
#include <sys/time.h>
time_t time(time_t *t) {
    struct timeval now;
    gettimeofday(&now, 0);
    now.tv_sec += atoi(getenv("SFQ_SHIFT"));
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}
"""


def request(**headers: str) -> HTTPConnection:
    raw = [
        (name.replace("_", "-").lower().encode(), value.encode())
        for name, value in headers.items()
    ]
    return HTTPConnection({"type": "http", "headers": raw})


def bearer(token: str) -> HTTPConnection:
    return request(authorization=f"Bearer {token}")


def sender(authenticate: Authenticate, connection: HTTPConnection) -> Identity:
    async def ask() -> Identity:
        return await authenticate(connection)

    return asyncio.run(ask())


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A tokens file: ada's token is ``a``, that of root, an admin, ``r``."""
    path = tmp_path / "tokens.yml"
    path.touch(0o600)
    entries = (
        token_entry("ada", "a", admin=False),
        token_entry("root", "r", admin=True),
    )
    path.write_text("".join(f"- {json.dumps(entry)}\n" for entry in entries))
    return path


def test_tokens_name_users(tokens: Path) -> None:
    known = Tokens(tokens)
    assert sender(known, bearer("a")) == Identity("ada", admin=False)
    assert sender(known, request(authorization="bearer  r ")) == Identity(
        "root", admin=True
    )
    assert sender(Tokens(tokens, ["ada"]), bearer("a")).admin


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer"},
        {"authorization": "Basic a"},
        {"authorization": "Bearer A"},
        {"authorization": "Bearer \u00e9"},
    ],
)
def test_other_tokens_are_refused(tokens: Path, headers: dict[str, str]) -> None:
    with pytest.raises(Unauthorized) as caught:
        sender(Tokens(tokens), request(**headers))
    assert caught.value.status == 401
    assert caught.value.field == "Authorization"
    assert caught.value.headers["WWW-Authenticate"].startswith("Bearer ")


def test_a_token_where_dwave_clients_put_it(tokens: Path) -> None:
    known = Tokens(tokens)
    assert sender(known, request(x_auth_token="a")) == Identity("ada", admin=False)
    with pytest.raises(Unauthorized, match="unknown bearer token"):
        sender(known, request(x_auth_token="b"))
    # a bearer token is what it is, whatever stands beside it
    with pytest.raises(Unauthorized, match="unknown bearer token"):
        sender(known, request(authorization="Bearer b", x_auth_token="a"))


def test_tokens_beside_munge(tokens: Path) -> None:
    async def munge_only(connection: HTTPConnection) -> Identity:
        if connection.headers.get(auth.MUNGE_HEADER) != "sound":
            raise Unauthorized("no", auth.MUNGE_HEADER, auth.MUNGE_CHALLENGE)
        return Identity("root", admin=True, root=True)

    both = MungeOrTokens(munge_only, Tokens(tokens))
    assert sender(both, request(x_munge_cred="sound")).root
    assert sender(both, request(x_munge_cred="sound", x_auth_token="a")).root
    assert sender(both, request(x_auth_token="a")).user == "ada"
    assert sender(both, bearer("r")) == Identity("root", admin=True)
    for wrong in (request(), request(x_munge_cred="not", x_auth_token="a")):
        with pytest.raises(Unauthorized, match="no"):
            sender(both, wrong)
    tokens.unlink()
    _cannot_check(both, bearer("r"))
    assert sender(both, request(x_munge_cred="sound")).root


def test_a_changed_file_is_read_in_a_thread(
    tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, threads = Tokens(tokens), list[threading.Thread]()
    read = read_tokens

    def seen(path: Path) -> dict[str, TokenEntry]:
        threads.append(threading.current_thread())
        return read(path)

    monkeypatch.setattr(tokens_module, "read_tokens", seen)
    sender(known, bearer("a"))
    assert threads == []
    tokens.write_text(tokens.read_text() + "\n")
    for _ in range(2):
        sender(known, bearer("a"))
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_a_changed_file_counts_at_once(
    tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = Tokens(tokens)
    first, second = tokens.read_text().splitlines(keepends=True)
    tokens.write_text(second)
    with pytest.raises(Unauthorized):
        sender(known, bearer("a"))
    tokens.write_text(first + second + "- nonsense\n")
    _cannot_check(known, bearer("a"))
    _cannot_check(known, bearer("r"))
    with pytest.raises(Unauthorized):
        sender(known, request())
    assert caplog.text.count("nobody is admitted by a token until it can be read") == 1
    tokens.write_text(first + second)
    assert sender(known, bearer("r"))
    tokens.unlink()
    _cannot_check(known, bearer("r"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: 1", "tokens.yml: expected a list"),
        ("", "tokens.yml: is empty; expected a list of tokens, [] if there is none"),
        ("# no one\n", "tokens.yml: is empty"),
        ("- nonsense", "tokens.yml: [0]: expected keys and values"),
        ("- {user: ada}", "tokens.yml: [0].sha256: missing"),
        ("- {user: a/b, sha256: x}", "tokens.yml: [0].user: string should match"),
        ("- {user: a, sha256: 1, amdin: true}", "did you mean 'admin'?"),
        ("[", "line 1: not YAML"),
        (
            f"- {{user: ann, sha256: {'a' * 64}}}\n- {{user: bob, sha256: {'a' * 64}}}",
            "tokens.yml: [1].sha256: one token is that of ann and bob; make another",
        ),
        (
            f"- {{user: a, sha256: {'a' * 64}}}\n"
            f"- {{user: a, sha256: {'a' * 64}, admin: true}}",
            "tokens.yml: [1].sha256: one token is that of a as an admin and as another",
        ),
    ],
)
def test_a_wrong_file_is_said_to_be(tokens: Path, content: str, words: str) -> None:
    tokens.write_text(content)
    with pytest.raises(InputError) as caught:
        Tokens(tokens)
    assert str(caught.value).startswith(str(tokens))
    assert words in str(caught.value)


@pytest.mark.parametrize("mode", [0o604, 0o620, 0o666])
def test_a_file_that_others_may_change_is_refused(tokens: Path, mode: int) -> None:
    tokens.chmod(mode)
    with pytest.raises(InputError, match=f"mode {mode:04o} is open to others"):
        Tokens(tokens)


def test_sfq_token_makes_tokens_that_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new.yml"
    assert main(["token", "ada", "--tokens", str(path)]) == 0
    assert main(["token", "eve", "--admin", "--tokens", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    ada, eve = printed.out.split()
    assert path.stat().st_mode & 0o777 == 0o600
    assert ada not in path.read_text()
    known = Tokens(path)
    assert sender(known, bearer(ada)) == Identity("ada", admin=False)
    assert sender(known, bearer(eve)) == Identity("eve", admin=True)


def test_sfq_token_without_a_file_says_what_to_add(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["token", "ada"]) == 0
    printed = capsys.readouterr()
    path = tmp_path / "tokens.yml"
    path.touch(0o600)
    path.write_text(printed.err.removeprefix("add to the tokens file: "))
    assert sender(Tokens(path), bearer(printed.out.strip())).user == "ada"


def test_sfq_token_refuses_what_is_no_name_and_no_tokens_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.yml"
    path.write_text("version: v1.0\n")
    assert main(["token", "a b"]) == 2
    assert main(["token", "ada", "--tokens", str(path)]) == 2
    assert main(["token", "ada", "--tokens", "/nowhere/tokens"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 3
    assert path.read_text() == "version: v1.0\n"


def test_an_outcome_stays_with_its_request() -> None:
    first, second = request(), request()
    auth.set_sender(first, Identity("ada", admin=False))
    auth.set_sender(second, Unauthorized("no", "X", "Y"))
    for _ in range(2):
        assert auth.get_sender(first).user == "ada"
        with pytest.raises(Unauthorized, match="no"):
            auth.get_sender(second)


@pytest.mark.process
def test_a_credential_holds_once(munge_socket: Path) -> None:
    user = pwd.getpwuid(os.geteuid()).pw_name
    known = Munge(munge_socket, [user])
    credential = munge.encode(str(munge_socket))
    identity = sender(known, request(x_munge_cred=credential))
    assert identity == Identity(user, admin=True, root=os.geteuid() == 0)
    _refused(known, credential, "replayed credential")


@pytest.mark.parametrize(
    ("credential", "words"),
    [
        ("", "needs a MUNGE credential"),
        ("MUNGE", "invalid credential"),
        ("MUNGE:AAAA:", "invalid credential"),
        ("\u00e9\u00e9", "invalid credential"),
    ],
)
def test_what_is_no_credential_is_refused(
    munge_socket: Path, credential: str, words: str
) -> None:
    _refused(Munge(munge_socket, []), credential, words)


@pytest.mark.process
def test_expired_and_rewound_credentials_are_refused(
    start_munged: Callable[..., Path], munge_socket: Path, tmp_path: Path
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to move a daemon's clock with")
    source, shim = tmp_path / "shim.c", tmp_path / "shim.so"
    source.write_text(SHIM)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", shim, source], check=True)
    known = Munge(munge_socket, [])
    for shift, words in (("-1000", "expired"), ("1000", "rewound")):
        there = {"LD_PRELOAD": str(shim), "SFQ_SHIFT": shift}
        socket = start_munged(words, there)
        _refused(known, munge.encode(str(socket)), f"{words} credential")


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_others_are_neither_root_nor_admins(munge_socket: Path) -> None:
    for user, name in (("nobody", "nobody"), (54321, "54321")):
        done = subprocess.run(
            ["munge", "--no-input", "--socket", munge_socket],
            user=user,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        credential = request(x_munge_cred=done.stdout.strip())
        identity = sender(Munge(munge_socket, ["ada"]), credential)
        assert identity == Identity(name, admin=False, root=False)


def test_a_daemon_that_is_gone(munge_socket: Path) -> None:
    with pytest.raises(QpuError, match="/nowhere/s"):
        Munge(Path("/nowhere/s"), [])
    known = Munge(munge_socket, [])
    known._socket = "/nowhere/s"
    with pytest.raises(AuthError) as caught:
        sender(known, request(x_munge_cred="MUNGE:AAAA:"))
    assert caught.value.status == 503
    # as the log has it, and the answer does not
    assert "/nowhere/s" in str(caught.value.__cause__)
    assert "AAAA" not in str(caught.value.__cause__)
    assert "/nowhere/s" not in caught.value.detail


def test_an_empty_tokens_file_is_named_to_its_users(tokens: Path) -> None:
    known = Tokens(tokens)
    tokens.write_text("")
    with pytest.raises(AuthError, match="the tokens file is empty; ask an admin"):
        sender(known, bearer("a"))


def test_a_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise OSError("cannot open shared object file")

    munge._library.cache_clear()
    monkeypatch.setattr("ctypes.CDLL", missing)
    with pytest.raises(InputError, match=r"libmunge\.so\.2 is not installed"):
        munge.encode()


def _cannot_check(known: Authenticate, connection: HTTPConnection) -> None:
    with pytest.raises(AuthError, match="the tokens cannot be read; ask an") as caught:
        sender(known, connection)
    assert caught.value.status == 503
    assert not caught.value.headers


def _refused(known: Munge, credential: str, words: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        sender(known, request(x_munge_cred=credential))
    assert caught.value.status == 401
    assert caught.value.detail.startswith(words)
    assert caught.value.field == "X-Munge-Cred"
    assert caught.value.headers == {"WWW-Authenticate": 'Munge header="X-Munge-Cred"'}
