"""The login node: what a connection that breaks or hangs does to those who use it."""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, MutableMapping, MutableSequence
from functools import partial
from pathlib import Path

import asyncssh
import pytest
from streamflow.core.deployment import ExecutionLocation, Shell
from streamflow.core.exception import WorkflowExecutionException
from streamflow.deployment.connector.base import BaseConnector
from streamflow.deployment.connector.local import LocalConnector
from streamflow.deployment.connector.ssh import SSHConnector

from sf_quantum.connectors.slurm.transport import answers, login, spool_shell
from sf_quantum.connectors.slurm.transport.controller import Commands
from sf_quantum.connectors.slurm.transport.login import LoginNode
from sf_quantum.connectors.slurm.transport.spool_shell import SpoolShell
from tests.support.slurm_jobs import StandIns
from tests.support.sshd import sshd
from tests.support.waiting import SECONDS, until_async

pytestmark = pytest.mark.process

KEY = "0123abcd"
LOSSES = [
    asyncssh.ConnectionLost("gone"),
    asyncssh.ChannelOpenError(2, "SSH connection closed"),
    ConnectionResetError("reset"),
    TimeoutError(),
]


class Host(LocalConnector):
    """This machine, whose connection is what a test makes of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__("host", str(folder))
        self.answer: Callable[[], tuple[str, int | None] | None] | None = None
        self.shell: Callable[[], Shell] | None = None

    async def run(
        self,
        location: ExecutionLocation,
        command: MutableSequence[str],
        environment: MutableMapping[str, str] | None = None,
        workdir: str | None = None,
        stdin: int | str | None = None,
        stdout: int | str = asyncio.subprocess.STDOUT,
        stderr: int | str = asyncio.subprocess.STDOUT,
        capture_output: bool = False,
        timeout: int | None = None,  # noqa: ASYNC109 - StreamFlow's signature
        job_name: str | None = None,
    ) -> tuple[str, int] | None:
        if self.answer is not None:
            return self.answer()  # type: ignore[return-value] # as asyncssh's None
        # as the SSH connector does it: housekeeping goes through the shell that all share
        return await BaseConnector.run(
            *(self, location, command, environment, workdir, stdin, stdout, stderr),
            *(capture_output, timeout, job_name),
        )

    async def get_shell(
        self, command: MutableSequence[str], location: ExecutionLocation
    ) -> Shell:
        if self.shell is not None:
            return self.shell()
        return await super().get_shell(command, location)


class Hanging(Shell):
    """A shell whose connection is dead, which nobody has noticed yet."""

    def __init__(self) -> None:
        super().__init__(["sh"], 1)
        self.hangs = False

    async def execute(
        self,
        command: MutableSequence[str],
        environment: MutableMapping[str, str] | None = None,
        workdir: str | None = None,
        capture_output: bool = False,
        timeout: int | None = None,  # noqa: ASYNC109 - StreamFlow's signature
    ) -> tuple[str, int] | None:
        if self.hangs:
            await asyncio.Event().wait()
        return "", 0

    async def close(self) -> None:
        await asyncio.Event().wait()

    async def closed(self) -> bool:
        return False


def _same(answer: tuple[str, int | None] | None) -> tuple[str, int | None] | None:
    return answer


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    host = Host(tmp_path)
    yield host
    await BaseConnector.undeploy(host, False)


@pytest.fixture
async def node(host: Host, tmp_path: Path) -> LoginNode:
    (found,) = (await host.get_available_locations()).values()
    made = LoginNode(host, found.location, str(tmp_path / "spool"), "run")
    # its commands go through the connector
    made.local = False
    return made


@pytest.fixture
def shell(node: LoginNode) -> SpoolShell:
    return SpoolShell(node)


@pytest.mark.parametrize("code", [None, -1, -15, 1, 255])
async def test_a_lost_connection_is_no_answer(
    host: Host, node: LoginNode, code: int | None
) -> None:
    for answer in (("", code), ("half an answ", code), None):
        host.answer = partial(_same, answer)
        with pytest.raises(WorkflowExecutionException, match="__LOCAL__ was lost: "):
            await node.run("sbatch")


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        # as sbatch does when an option is wrong
        ("echo no >&2; exit 255", ("no", 255)),
        ("printf 'a\\nb'", ("a\nb", 0)),
        ("x=$(exit 3) || exit; echo more", ("", 3)),
        ("(trap 'echo in' EXIT; exit 4) || exit 5", ("in", 5)),
    ],
)
@pytest.mark.parametrize("local", [True, False], ids=["here", "there"])
async def test_the_exit_code_is_the_commands_own(
    node: LoginNode, command: str, answer: tuple[str, int], local: bool
) -> None:
    node.local = local
    assert await node.run(command) == answer


async def test_a_command_that_is_killed_gives_no_answer(node: LoginNode) -> None:
    node.local = True
    with pytest.raises(
        WorkflowExecutionException, match="__LOCAL__ was lost: sfq begins half"
    ):
        await node.run("echo half; kill -9 $$")


@pytest.mark.parametrize("local", [True, False], ids=["here", "there"])
async def test_a_command_has_the_environment_of_the_location(
    host: Host, tmp_path: Path, local: bool
) -> None:
    (found,) = (await host.get_available_locations()).values()
    found.location.environment["SLURM_CONF"] = str(tmp_path)
    node = LoginNode(host, found.location, str(tmp_path / "spool"), "run")
    node.local = local
    assert await node.run("echo $SLURM_CONF; cat") == (str(tmp_path), 0)


async def test_what_profiles_print_is_no_part_of_an_answer(
    host: Host, node: LoginNode
) -> None:
    banner = "Welcome! 7 jobs\nsfq ended with 3\nstty: no terminal"
    host.answer = lambda: (f"{banner}\nsfq begins\n42\n\nsfq ended with 0\nBye", 0)
    assert await node.run("cat lock") == ("42", 0)


@pytest.mark.parametrize("local", [True, False], ids=["here", "there"])
@pytest.mark.parametrize("content", ["''", "x"], ids=["quotes", "letters"])
async def test_a_command_may_be_longer_than_an_argument(
    node: LoginNode, shell: SpoolShell, content: str, local: bool
) -> None:
    node.local = local
    await shell.read_marks(None)
    command = f"cat <<'END'\n{content * 150_000}\nEND\nexit 3"
    assert await node.run(command) == (content * 150_000, 3)
    assert not any(name.endswith(".command") for name in os.listdir(node.spool))
    await shell.close()
    # where its file cannot be written, it has not run
    with pytest.raises(WorkflowExecutionException, match="was lost"):
        await node.run(command)


@pytest.mark.parametrize(
    ("quiet_seconds", "pauses"),
    [(None, []), (0.0, ["0.10"] * 20), (20.0, ["0.40"] * 5), (1e4, ["0.50"] * 4)],
)
async def test_looks_become_rarer_while_nothing_happens(
    shell: SpoolShell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    quiet_seconds: float | None,
    pauses: list[str],
) -> None:
    stand_ins = StandIns(tmp_path / "stand-ins", monkeypatch)
    stand_ins.add("sleep", 'echo "$1" >>"$here/pauses"; exit')
    assert await shell.read_marks(quiet_seconds) == []
    file = tmp_path / "stand-ins" / "pauses"
    assert (file.read_text().split() if file.exists() else []) == pauses
    await shell.close()


async def test_a_driver_on_the_login_node_waits_without_a_process(
    node: LoginNode, shell: SpoolShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.local = True
    assert await shell.read_marks(None) == []
    monkeypatch.setattr(spool_shell, "POLL_SECONDS", 0.3)
    stand_ins = StandIns(tmp_path / "stand-ins", monkeypatch)
    stand_ins.add("sleep", 'echo >>"$here/pauses"')
    assert await shell.read_marks(0.0) == []
    monkeypatch.setattr(spool_shell, "POLL_SECONDS", SECONDS)
    looking = asyncio.create_task(shell.read_marks(0.0))
    (Path(node.spool) / f"{KEY}.new").write_text(f"{KEY} 7 0 1.5 2.5 3\n")
    (Path(node.spool) / f"{KEY}.new").rename(Path(node.spool) / f"{KEY}.mark")
    async with asyncio.timeout(SECONDS / 2):
        (mark,) = await looking
        # which removes the mark
        assert await shell.read_marks(0.0) == []
    assert mark.key == KEY
    assert not [name for name in os.listdir(node.spool) if name.endswith(".mark")]
    assert stand_ins.count("pauses") == 0
    await shell.close()


async def test_what_is_killed_is_lost_and_what_no_shell_reads_is_not(
    node: LoginNode,
) -> None:
    with pytest.raises(WorkflowExecutionException, match="was lost"):
        await node.run("kill -9 $$")
    text, code = await node.run('echo "')
    assert "nterminated" in text or "EOF" in text
    assert code == 2


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
async def test_every_loss_is_told_of_in_one_way(
    host: Host,
    node: LoginNode,
    shell: SpoolShell,
    loss: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(login, "RETRY_SECONDS", 0)
    monkeypatch.setattr(login, "_warned", {})

    def lose() -> Shell:
        raise loss

    assert await shell.read_marks(None) == []
    host.answer = host.shell = lose  # type: ignore[assignment] # it answers nothing
    with pytest.raises(WorkflowExecutionException, match="no connection to"):
        await node.run("true")
    await shell.leave()
    with caplog.at_level(logging.WARNING, "streamflow"):
        assert await shell.read_marks(None) == []
        assert await Commands(node).rows({"1"}) == {}
    assert [r.getMessage().count("no connection to") for r in caplog.records] == [1, 1]
    assert not any(record.exc_info for record in caplog.records)
    await shell.close()


async def test_commands_that_last_hold_up_no_other(
    node: LoginNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even as many as may have a session at once; one need not be waited for."""
    monkeypatch.setattr(login, "SESSION_PATIENCE_SECONDS", 0.05)
    go = tmp_path / "go"
    command = f"while [ ! -e {go} ]; do sleep 0.02; done; echo slow"
    left = asyncio.create_task(node.run(command))
    slow = [asyncio.create_task(node.run(command)) for _ in range(login.MAX_SESSIONS)]
    await asyncio.sleep(0.1)
    left.cancel()
    async with asyncio.timeout(SECONDS):
        assert await node.run("echo quick") == ("quick", 0)
        go.touch()
        assert await asyncio.gather(*slow) == [("slow", 0)] * len(slow)
        await until_async(
            lambda: node._sessions._value == login.MAX_SESSIONS, "the end"
        )


async def test_a_command_goes_on_without_its_caller(
    host: Host, node: LoginNode, tmp_path: Path
) -> None:
    # over SSH it would end with the session
    ended: list[bool] = []
    began, over = asyncio.Event(), asyncio.Event()
    run = host.run

    async def kept(*args: object, **options: object) -> tuple[str, int] | None:
        began.set()
        try:
            return await run(*args, **options)  # type: ignore[arg-type]
        except asyncio.CancelledError:
            ended.append(False)
            raise
        finally:
            ended.append(True)
            over.set()

    host.run = kept  # type: ignore[method-assign]
    caller = asyncio.create_task(node.run(f"sleep 0.2; touch {tmp_path}/done"))
    await began.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    async with asyncio.timeout(SECONDS):
        await over.wait()
    assert ended == [True]
    assert (tmp_path / "done").exists()


async def test_what_is_no_mark_is_no_mark(
    node: LoginNode, shell: SpoolShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "RETRY_SECONDS", 0)
    await shell.read_marks(None)
    lines = [
        f"{KEY} 7 zero 1.5 2.5 3",
        f"{KEY} 7 0 1.5.1 2.5 3",
        f"{KEY} 7 0 1.5 2.5 x",
        f"{KEY} seven 0 1.5 2.5 3",
        f"{KEY} 7 0 nan 2.5 3",
        f"../{KEY} 7 0 1.5 2.5 3",
        f"{KEY} 7",
        "",
    ]
    (Path(node.spool) / "a.mark").write_text("\n".join(lines))
    assert await shell.read_marks(None) == []
    (Path(node.spool) / f"{KEY}.mark").write_text(f"{KEY} 7 0 1.5 - 3\n")
    (found,) = await shell.read_marks(None)
    assert (found.key, found.slurm_job, found.exit_code) == (KEY, "7", 0)
    assert (found.started, found.ended, found.output_bytes) == (1.5, None, 3)
    await shell.close()
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240 - a local folder


async def test_commands_at_once_open_no_session_that_a_server_refuses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """StreamFlow waits five seconds after a refused one, and warns of it."""
    slow = tmp_path / "shell"
    slow.write_text('#!/bin/sh\nsleep 0.1\nexec sh "$@"\n')
    slow.chmod(0o755)
    with sshd(tmp_path / "sshd", {}, str(slow)) as port:
        connector = SSHConnector(
            "host",
            str(tmp_path),
            nodes=[f"127.0.0.1:{port}"],
            username=getpass.getuser(),
            sshKey=str(tmp_path / "sshd" / "user"),
            checkHostKey=False,
        )
        await connector.deploy(external=False)
        (found,) = (await connector.get_available_locations()).values()
        node = LoginNode(connector, found.location, str(tmp_path), "run")
        numbers = range(30)
        given = await asyncio.gather(*[node.run(f"echo {n}") for n in numbers])
        await connector.undeploy(external=False)
    assert given == [(str(n), 0) for n in numbers]
    assert "opening SSH session" not in caplog.text


async def test_jobs_that_begin_together_share_a_shell(
    host: Host, shell: SpoolShell
) -> None:
    await asyncio.gather(*(shell.read_marks(None) for _ in range(3)))
    (shells,) = host._shells.values()
    assert len(shells) == 1


async def test_what_was_read_is_removed_with_its_command(
    node: LoginNode, shell: SpoolShell
) -> None:
    await shell.read_marks(None)
    files = [Path(node.spool) / f"{KEY}.{kind}" for kind in ("mark", "sh", "lock")]
    for file in files:
        file.write_text(f"{KEY} 7 0 1.5 - 3\n")
    assert len(await shell.read_marks(None)) == 1
    assert await shell.read_marks(None) == []
    assert [file.exists() for file in files] == [False, False, True]
    await shell.close()


async def test_the_cleaning_up_ends_soon_if_the_cluster_is_gone(
    node: LoginNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "PATIENCE_SECONDS", 1)
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\nexec sleep 600\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    shell = SpoolShell(node)
    await shell.read_marks(None)
    await shell.leave()
    spool = Path(node.spool)
    await until_async(lambda: not spool.exists(), "the spool is removed")


@pytest.mark.parametrize("end", ["close", "leave"])
async def test_a_dead_connection_holds_up_no_end(
    host: Host, shell: SpoolShell, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(spool_shell, "END_SECONDS", 0.1)
    hanging = Hanging()
    host.shell = lambda: hanging
    await shell.read_marks(None)
    hanging.hangs = True
    async with asyncio.timeout(SECONDS):
        await getattr(shell, end)()


async def test_a_forgotten_job_is_no_failure_of_squeue(
    host: Host, node: LoginNode
) -> None:
    denied = "slurm_load_jobs error: Invalid job id specified"
    host.answer = lambda: (f"sfq begins\n{denied}\n\nsfq ended with 1", 1)
    assert await Commands(node).rows({"1"}) == {"1": []}
    assert await Commands(node).rows({"1", "2"}) == {}
    host.answer = lambda: ("sfq begins\nsfq ended with 124", 124)
    assert await Commands(node).rows({"1"}) == {}


def test_warnings_are_repeated_after_a_minute_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(login, "_warned", {"old": now - 60, "again": now - 60})
    for text in ("again", "again", "new"):
        login.warn(text)
    assert [one.message for one in caplog.records] == ["again", "new"]
    assert [*login._warned] == ["again", "new"]
