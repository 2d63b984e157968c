"""The login node, which runs shell commands, and a shell that cleans up.

The shell stays open and reports the marks in the spool to the driver. When its input ends,
because the driver has ended or the connection is lost, it cancels all jobs that the driver
submitted. This works however the driver ends, and over SSH as well.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import shlex
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import ParamSpec

import asyncssh
from streamflow.core.deployment import Connector, ExecutionLocation, Shell
from streamflow.core.exception import WorkflowExecutionException
from streamflow.log_handler import logger

from sf_quantum import backoff
from sf_quantum.connectors import guardian
from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.scripts import JobMark
from sf_quantum.connectors.slurm.transport import answers
from sf_quantum.slurm import ids

P = ParamSpec("P")

LOOK_SECONDS = 2.0
# Each pause is a process on the login node, unless the driver runs there. While nothing
# happens, pauses grow with the time, so the end of a job is seen at most this part of it
# too late.
LOOK_PAUSE_SECONDS, MAX_LOOK_PAUSE_SECONDS, LOOK_PAUSE_PART = 0.1, 0.5, 0.02
RETRY_SECONDS = 1.0
# the connection may be lost for a while, or a slow file system show a file late
READ_ATTEMPTS = 5
READ_PAUSE_SECONDS = 1.0
# how long the shell waits for a driver that has lost its connection to reconnect
GRACE_SECONDS = 45
LOCAL_GRACE_SECONDS = 3
ANSWER_SECONDS = 60
CLOSE_SECONDS = 5
# how often the shell tries to remove the spool, for about a minute
REMOVALS = 600
# StreamFlow kills a local shell after five seconds
END_SECONDS = 8
# A shell function that cancels jobs; its first argument is the option for their clusters.
# A cluster of a federation may start a job just when that of its submission cancels it. Under
# Slurm 22.05 it then runs on, and only a request to the cluster that runs it ends it.
_CANCEL_JOBS = f"""\
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
# The first line ends what banners and profiles of the login node print. If the last one is
# missing, the connection was lost. The exit code does not show that: sbatch has the same one
# for a wrong option as ssh has for a broken connection.
_ANSWER = re.compile(
    r".*?^sfq begins\n(.*)^sfq ended with (\d+)(?:\n.*)?", re.DOTALL | re.MULTILINE
)
_BEGIN = f"""\
exec 2>&1
printf '\\nsfq begins\\n'
trap 'printf "\\nsfq ended with %d\\n" $?' EXIT
{scripts.PLAIN}
{_CANCEL_JOBS}"""
# Linux limits each argument of a program to 128 KiB (MAX_ARG_STRLEN, execve(2))
_ARGUMENT_BYTES = 100_000

#: A sed script that reads lines of the queue with the id, state and comment of a job.
#: It prints the id if the job is of the driver's run, or of one of its jobs. A revoked
#: job runs on another cluster.
OWN = r"/ REVOKED /d; s/^\([0-9]*\) [A-Z_]* sfq:{run}:{key}[^ ]*\( .*\)*$/\1/p"
# A job that was being submitted appears late in the queue, so the queue must be empty several
# times in a row.
_CANCEL = """\
  n=0 quiet=0
  while [ $n -lt 60 ] && [ $quiet -lt 3 ]; do
    quiet=$((quiet + 1))
    # on the login node's own cluster, and on those that its jobs named
    for at in --sibling $(sort -u "$d/clusters" 2>/dev/null); do
      if ids=$(plain squeue $at --noheader --user="$(id -un)" --format='%F %T %k'); then
        ids=$(echo "$ids" | sed -n '{own}' | sort -u)
        [ -z "$ids" ] || {{ quiet=0; cancel "${{at#--sibling}}" $ids; }}
      else
        quiet=0
      fi
    done
    n=$((n + 1)); sleep 0.5
  done"""
# A shell with a successor leaves the cleaning up to it.
_SETUP = """\
{plain}
{cancelling}
trap '' HUP INT TERM PIPE
d={spool} me={me} grace={grace}
mkdir -p "$d" && chmod 700 "$d" && rm -f "$d/gone" && echo $me >"$d/owner" || exit
look() {{
  touch "$d/alive"
  n=$1 pause=$2; shift 2
  [ $# -eq 0 ] || rm -f "$@"
  while :; do
    set -- "$d"/*.mark
    [ ! -e "$1" ] || {{ cat "$@"; return; }}
    [ $n -gt 0 ] && [ ! -e "$d/stop" ] || return 0
    n=$((n - 1)); sleep $pause
  done
}}
owner() {{ [ "$(cat "$d/owner")" = $me ]; }}
# a job that is ending may still write files there, for long on a busy node
remove() {{
  n=0
  until rm -rf "$d" || [ $n -ge {removals} ]; do n=$((n + 1)); sleep {pause}; done
}}
end() {{
  owner && touch "$d/gone" || return
  n=0
  while [ $n -lt $grace ]; do
    sleep 1; n=$((n + 1))
    owner || return
  done
{cancel}
  remove
}}
# in the background, since a connector kills a shell that does not end soon; dash would wait
# for a function without the parentheses
trap '(end) </dev/null >/dev/null 2>&1 &' EXIT"""


@contextmanager
def reaching(location: ExecutionLocation) -> Iterator[None]:
    """Convert the exceptions of StreamFlow and asyncssh for a lost connection."""
    try:
        yield
    except (OSError, asyncssh.Error) as error:
        message = str(error) or type(error).__name__
        raise WorkflowExecutionException(
            f"no connection to {location.name}: {message}"
        ) from error


def is_too_long(command: str) -> bool:
    """Whether a command exceeds an argument of ``sh -c``, quoted twice as by connectors."""
    return len(shlex.quote(shlex.quote(command)).encode()) > _ARGUMENT_BYTES


class LoginNode:
    """The login node, for one run of a deployment.

    :param spool: see :mod:`sf_quantum.connectors.slurm.scripts`
    :param run: the id of the driver's run in the comments of its jobs
    :param cancel: shell commands that end the driver's jobs after the driver's end; by
        default those of Slurm
    """

    def __init__(
        self,
        connector: Connector,
        location: ExecutionLocation,
        spool: str,
        run: str,
        cancel: str = "",
    ) -> None:
        self._connector = connector
        self._location = location
        self.name = location.name
        #: whether the driver runs on the login node
        self.local = location.local
        self.spool = spool
        self.driver_run = run
        self._cancel = cancel or _CANCEL.format(own=OWN.format(run=run, key=""))
        self._shell: Shell | None = None
        # whether a remote shell is reading marks
        self._looking = False
        # Held while a shell is opened: if two were, one would be forgotten, and keep
        # running.
        self._opening = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._seen: list[str] = []

    async def run(self, command: str) -> tuple[str, int]:
        """Run a shell command in a separate session, so that commands run concurrently.

        The command continues if the caller is cancelled: StreamFlow's SSH connector does
        not recover from a cancelled connection attempt. One that is too long for an argument
        travels as a file.

        :returns: the output, stderr included, and the exit code
        :raises WorkflowExecutionException: if the login node cannot be reached, or the
            connection was lost, so that the result of the command is unknown
        """
        script = f"{_BEGIN}\n{command}"
        if is_too_long(command):
            file = scripts.path(self.spool, uuid.uuid4().hex, "command")
            await self.write(file, script.encode())
            script = f"sh {shlex.quote(file)}; rm -f {shlex.quote(file)}"
        session = self._here if self.local else self._there
        with reaching(self._location):
            text = await asyncio.shield(session(script))
        if (answer := _ANSWER.fullmatch(text.rstrip())) is None:
            message = " ".join(text.split()) or "no message"
            raise WorkflowExecutionException(
                f"the connection to {self.name} was lost: {message}"
            )
        return answer[1].strip(), int(answer[2])

    async def _here(self, script: str) -> str:
        # a connector would start one shell more, and parse the script before
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", script),
            env=os.environ | self._location.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        output, _ = await process.communicate()
        return output.decode(errors="replace")

    async def _there(self, script: str) -> str:
        # StreamFlow does not use the shared shell if stdin is set.
        words = ["sh", "-c", shlex.quote(script)]
        result = await self._connector.run(
            self._location, words, stdin="/dev/null", capture_output=True
        )
        return "" if result is None else result[0]

    async def write(self, file: str, content: bytes) -> None:
        """Write a file of mode 0600; an incomplete one is removed.

        The content goes through a pipe, since ``ps`` and logs show command lines.

        :raises WorkflowExecutionException: if the login node cannot be reached
        """
        # the file may be read or written concurrently; a lost connection truncates the input
        script = (
            f"umask 077; f={shlex.quote(file)}; t=$f.$$; "
            f"cat >$t && [ $(wc -c <$t) -eq {len(content)} ] && mv $t $f || "
            # what is not read would break the pipe
            "{ rm -f $t; cat >/dev/null; }"
        )
        with reaching(self._location):
            writer = await self._connector.get_stream_writer(
                ["sh", "-c", shlex.quote(script)], self._location
            )
            async with writer as stream:
                await stream.write(content)

    async def spooled(self, command: str) -> str:
        """Write a command to a file of the spool; return one that reads it."""
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
        """Run an idempotent command; if its result is unknown, its code is ``UNKNOWN``."""
        try:
            return await self.run(command)
        except WorkflowExecutionException as error:
            return str(error), scripts.UNKNOWN

    async def read(self, command: str) -> str:
        """The output of a command, which is run again if it fails.

        :raises WorkflowExecutionException: if it fails several times
        """
        for _ in range(READ_ATTEMPTS):
            text, code = await self.ask(command)
            if code == 0:
                return text.strip()
            await asyncio.sleep(READ_PAUSE_SECONDS)
        raise WorkflowExecutionException(
            f"The output of a job cannot be read: {answers.in_one_line(text)}"
        )

    async def look(self, quiet_seconds: float | None) -> list[JobMark]:
        """Update the driver's sign of life in the spool, and read the new marks.

        :param quiet_seconds: wait up to :data:`LOOK_SECONDS` for a mark, after so long
            without one; do not wait if None
        """
        pause = LOOK_PAUSE_PART * (quiet_seconds or 0.0)
        pause = min(max(LOOK_PAUSE_SECONDS, pause), MAX_LOOK_PAUSE_SECONDS)
        polls = 0 if quiet_seconds is None else math.ceil(LOOK_SECONDS / pause)
        if self.local:
            # marks that have been read are removed first
            await self._wait_for_mark(0 if self._seen else polls, pause)
            polls = 0
        seen = " ".join(shlex.quote(file) for file in self._seen)
        try:
            # the rest of an interrupted answer would be read as the beginning of the next
            text = await asyncio.shield(
                self._execute(f"look {polls} {pause:.2f} {seen}")
            )
        except WorkflowExecutionException as error:
            warn(f"Cannot read job marks, next attempt in {RETRY_SECONDS:g} s: {error}")
            shell, self._shell = self._shell, None
            if shell is not None:
                self._end(shell)
            await asyncio.sleep(RETRY_SECONDS)
            return []
        marks = scripts.marks(text)
        if text and not marks:
            # an invalid mark is not removed, and would be read again at once
            await asyncio.sleep(RETRY_SECONDS)
        # The scripts of the jobs are removed with the marks: one `rm` here saves one in
        # each.
        self._seen = [
            scripts.path(self.spool, mark.key, kind)
            for mark in marks
            for kind in ("mark", "sh")
        ]
        return marks

    async def _wait_for_mark(self, polls: int, pause: float) -> None:
        for _ in range(polls):
            if await asyncio.to_thread(self._has_mark):
                break
            await asyncio.sleep(pause)

    def _has_mark(self) -> bool:
        with suppress(
            OSError
        ):  # the shell makes the spool, and says what is wrong with it
            return any(name.endswith(".mark") for name in os.listdir(self.spool))
        return False

    async def close(self) -> None:
        """End the shell and remove the spool."""
        # The removal goes on in the background if the shell is killed meanwhile.
        background = "(remove) </dev/null >/dev/null 2>&1 & wait $!"
        await self._finish(f"trap - EXIT; {background}")

    async def leave(self) -> None:
        """End the shell, which then cancels the jobs that the driver could not cancel."""
        await self._finish("grace=0")

    async def _finish(self, last: str) -> None:
        """Run a last command in the shell, and close it even if it hangs."""
        shell, self._shell = self._shell, None
        if shell is None:
            return
        with suppress(WorkflowExecutionException, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                if self._looking:  # it may be waiting for marks
                    await self.run(f": >{shlex.quote(self.spool)}/stop")
                with reaching(self._location):
                    await shell.execute([last], capture_output=True)
        await asyncio.wait({self._end(shell)}, timeout=END_SECONDS)

    async def _execute(self, command: str) -> str:
        with reaching(self._location):
            async with self._opening:
                shell = await self._opened()
            self._looking = True
            try:
                result = await shell.execute(
                    [command], capture_output=True, timeout=ANSWER_SECONDS
                )
            finally:
                self._looking = False
        return result[0] if result else ""

    async def _opened(self) -> Shell:
        if self._shell is None or await self._shell.closed():
            # the driver's guardian must not end this shell, which cleans up after the driver
            me = uuid.uuid4().hex
            # connectors return the same shell for the same command, even if it hangs
            words = ["env", "-u", guardian.MARKER, f"{guardian.OUTLIVES}={me}", "sh"]
            if self.local:
                # whoever kills the driver's process group does not kill it
                words.insert(-1, "setsid")
            shell = await self._connector.get_shell(words, self._location)
            setup = _SETUP.format(
                plain=scripts.PLAIN,
                cancelling=_CANCEL_JOBS,
                cancel=self._cancel,
                spool=shlex.quote(self.spool),
                me=me,
                pause=LOOK_PAUSE_SECONDS,
                removals=REMOVALS,
                grace=LOCAL_GRACE_SECONDS if self.local else GRACE_SECONDS,
            )
            await shell.execute([setup], capture_output=True, timeout=ANSWER_SECONDS)
            self._shell = shell
        return self._shell

    def _end(self, shell: Shell) -> asyncio.Task[None]:
        """Close a shell in the background, since it may hang."""

        async def close() -> None:
            with suppress(WorkflowExecutionException), reaching(self._location):
                await shell.close()

        task = asyncio.create_task(close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task


def survives_errors(
    work: Callable[P, Awaitable[None]],
) -> Callable[P, Coroutine[None, None, None]]:
    """Log unexpected errors of one round of a background task, and let the task continue.

    Without these tasks, the end of a job would never be noticed.
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
    """Log a warning at most once a minute."""
    now = time.monotonic()
    for old in [one for one, at in _warned.items() if now - at >= 60]:
        del _warned[old]
    if text not in _warned:
        _warned[text] = now
        logger.warning(text)
