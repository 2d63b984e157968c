"""The login node, on which the driver runs shell commands and writes files."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import ParamSpec
from weakref import WeakKeyDictionary

import asyncssh
from streamflow.core.deployment import Connector, ExecutionLocation
from streamflow.core.exception import WorkflowExecutionException
from streamflow.log_handler import logger

from sf_quantum import backoff
from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.transport import answers
from sf_quantum.slurm import ids

P = ParamSpec("P")

# pause before a repeated attempt, and time limit of requests at the end of the run
RETRY_SECONDS = 1.0
CLOSE_SECONDS = 5
# Usual maximum of concurrent sessions: an SSH server allows ten sessions per connection by
# default (MaxSessions of sshd_config(5)), of which StreamFlow uses some. If a session is
# refused, StreamFlow does not open another one for five seconds.
MAX_SESSIONS = 4
# Longest wait for one of these sessions: after it, a further session is opened, since long
# commands must not delay others, such as the cancellation of a job.
SESSION_PATIENCE_SECONDS = 3.0
_sessions_of: WeakKeyDictionary[Connector, dict[str, asyncio.Semaphore]] = (
    WeakKeyDictionary()
)
# Attempts to read a file: the connection may be lost for a while, or a slow file system may
# show the file late.
READ_ATTEMPTS = 5
READ_PAUSE_SECONDS = 1.0
# A shell function that cancels jobs; its first argument is the option that names the clusters.
# A cluster of a federation may start a job just when the cluster where the job was submitted
# cancels it. With Slurm 22.05, the job then keeps running, and only the cluster that runs the
# job can cancel it.
CANCEL_JOBS = f"""\
cancel() {{
  where=$1; shift
  plain timeout {answers.PATIENCE_SECONDS} scancel $where "$@"; code=$?
  federated=
  for job; do
    [ "${{job%%[+_]*}}" -le {ids.MAX_NUMBER} ] || federated=$federated,$job
  done
  [ -n "$where" ] || [ -z "$federated" ] ||
    plain timeout {answers.PATIENCE_SECONDS} squeue --sibling --noheader --states=R,CF,S \\
      --jobs="${{federated#,}}" --Format='Cluster:|,JobID:|' |
    while IFS='|' read -r there job _; do
      plain timeout {answers.PATIENCE_SECONDS} scancel -M "$there" "$job"
    done
  return $code
}}"""
# The first line separates the output from text of banners and profiles. If the last
# line is missing, the connection was lost. The exit code does not show this: it is the same
# for sbatch with a wrong option and for ssh after a lost connection.
_ANSWER = re.compile(
    r".*?^sfq begins\n(.*)^sfq ended with (\d+)(?:\n.*)?", re.DOTALL | re.MULTILINE
)
_BEGIN = f"""\
exec 2>&1
printf '\\nsfq begins\\n'
trap 'printf "\\nsfq ended with %d\\n" $?' EXIT
{scripts.PLAIN}
{CANCEL_JOBS}"""
# Linux limits each argument of a program to 128 KiB (MAX_ARG_STRLEN, execve(2)).
_ARGUMENT_BYTES = 100_000


@contextmanager
def reaching(location: ExecutionLocation) -> Iterator[None]:
    """Convert the exceptions for a lost connection to StreamFlow's exception."""
    try:
        yield
    except (OSError, asyncssh.Error) as error:
        message = str(error) or type(error).__name__
        raise WorkflowExecutionException(
            f"no connection to {location.name}: {message}"
        ) from error


def is_too_long(command: str) -> bool:
    """Return whether a command would be too long for ``sh -c`` after being quoted twice.

    Connectors quote the commands that they pass on.
    """
    return len(shlex.quote(shlex.quote(command)).encode()) > _ARGUMENT_BYTES


class LoginNode:
    """The login node, for one run of a deployment.

    :param spool: path of the spool, see :mod:`sf_quantum.connectors.slurm.scripts`
    :param run: id of the driver's run in the comments of its jobs
    """

    def __init__(
        self,
        connector: Connector,
        location: ExecutionLocation,
        spool: str,
        run: str,
    ) -> None:
        self.connector = connector
        self.location = location
        self.name = location.name
        #: whether the driver runs on the login node
        self.local = location.local
        self.spool = spool
        self.driver_run = run
        sessions = _sessions_of.setdefault(connector, {})
        self._sessions = sessions.setdefault(self.name, asyncio.Semaphore(MAX_SESSIONS))

    async def run(self, command: str) -> tuple[str, int]:
        """Run a shell command in a separate session, so that commands run concurrently.

        If the caller is cancelled, the command still continues, as StreamFlow's SSH connector
        does not recover from a cancelled attempt to connect. A command that is too long for an
        argument is sent as a file.

        :returns: the output, including standard error, and the exit code
        :raises WorkflowExecutionException: if the login node cannot be reached, or the
            connection was lost, so that the result of the command is unknown
        """
        script = f"{_BEGIN}\n{command}"
        if is_too_long(command):
            file = scripts.path(self.spool, uuid.uuid4().hex, "command")
            await self.write(file, script.encode())
            script = f"sh {shlex.quote(file)}; rm -f {shlex.quote(file)}"
        ended = None if self.local else await self._acquire_session()
        with reaching(self.location):
            session = asyncio.ensure_future(
                self._run_locally(script)
                if ended is None
                else self._run_remotely(script)
            )
            if ended is not None:
                session.add_done_callback(ended)
            text = await asyncio.shield(session)
        if (answer := _ANSWER.fullmatch(text.rstrip())) is None:
            message = " ".join(text.split()) or "no message"
            raise WorkflowExecutionException(
                f"the connection to {self.name} was lost: {message}"
            )
        return answer[1].strip(), int(answer[2])

    async def _run_locally(self, script: str) -> str:
        # Without the connector, which would start another shell that parses the script first.
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", script),
            env=os.environ | self.location.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await process.communicate()
        return output.decode(errors="replace")

    async def _run_remotely(self, script: str) -> str:
        # With stdin set, StreamFlow does not run the command in the shell that commands share.
        words = ["sh", "-c", shlex.quote(script)]
        result = await self.connector.run(
            self.location, words, stdin="/dev/null", capture_output=True
        )
        return "" if result is None else result[0]

    async def _acquire_session(self) -> Callable[..., None]:
        """Wait until a session may be opened.

        :returns: function that the caller has to call when the session has ended
        """
        try:
            async with asyncio.timeout(SESSION_PATIENCE_SECONDS):
                await self._sessions.acquire()
        except TimeoutError:
            return lambda *_: None
        return lambda *_: self._sessions.release()

    async def write(self, file: str, content: bytes) -> None:
        """Write a file of mode 0600; if it is incomplete, remove it.

        The content is sent through a pipe, since ``ps`` and logs show command lines.

        :raises WorkflowExecutionException: if the login node cannot be reached
        """
        # A temporary file is used, as the file may be read or written concurrently. Its size
        # is checked, as a lost connection truncates the input.
        script = (
            f"umask 077; f={shlex.quote(file)}; t=$f.$$; "
            f"cat >$t && [ $(wc -c <$t) -eq {len(content)} ] && mv $t $f || "
            # if input stayed unread, the pipe would break
            "{ rm -f $t; cat >/dev/null; }"
        )
        ended = await self._acquire_session()
        try:
            with reaching(self.location):
                writer = await self.connector.get_stream_writer(
                    ["sh", "-c", shlex.quote(script)], self.location
                )
                async with writer as stream:
                    await stream.write(content)
        finally:
            ended()

    async def spooled(self, command: str) -> str:
        """Write a command to a file in the spool; return a command that runs the file."""
        file = scripts.path(self.spool, uuid.uuid4().hex, "command")
        for pause in backoff.CLUSTER.pauses():
            with suppress(WorkflowExecutionException):
                await self.write(file, command.encode())
                if (await self.run(f"[ -e {shlex.quote(file)} ]"))[1] == 0:
                    break
            warn(f"Cannot write {file} on {self.name}, and will try again")
            await asyncio.sleep(pause)
        return f". {shlex.quote(file)}"

    async def ask(self, command: str) -> tuple[str, int]:
        """Run an idempotent command; if its result is unknown, return the code ``UNKNOWN``."""
        try:
            return await self.run(command)
        except WorkflowExecutionException as error:
            return str(error), scripts.UNKNOWN

    async def read(self, command: str) -> str:
        """Return the output of a command; if the command fails, run it again.

        :raises WorkflowExecutionException: if the command fails :data:`READ_ATTEMPTS` times
        """
        for _ in range(READ_ATTEMPTS):
            text, code = await self.ask(command)
            if code == 0:
                return text.strip()
            await asyncio.sleep(READ_PAUSE_SECONDS)
        raise WorkflowExecutionException(
            f"The output of a job cannot be read: {answers.in_one_line(text)}"
        )


def survives_errors(
    work: Callable[P, Awaitable[None]],
) -> Callable[P, Coroutine[None, None, None]]:
    """Decorate one round of a background task: log unexpected errors, so the task continues.

    If such a task ended, the end of a job would never be noticed.
    """

    @wraps(work)
    async def surviving(*args: P.args, **options: P.kwargs) -> None:
        try:
            await work(*args, **options)
        except Exception as error:  # noqa: BLE001 - see above
            message = f"{type(error).__name__}: {error}"
            warn(f"Unexpected error while following Slurm jobs, continuing: {message}")
            logger.debug("Unexpected error while following Slurm jobs", exc_info=error)
            await asyncio.sleep(RETRY_SECONDS)

    return surviving


_warned: dict[str, float] = {}


def warn(text: str) -> None:
    """Log a warning; the same text at most once a minute."""
    now = time.monotonic()
    for old in [
        message for message, warned_at in _warned.items() if now - warned_at >= 60
    ]:
        del _warned[old]
    if text not in _warned:
        _warned[text] = now
        logger.warning(text)
