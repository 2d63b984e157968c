"""The login node: Slurm's commands run there, and a shell there cleans up.

The shell stays open. It looks for marks in the spool when the driver asks it to. When its
input ends, because the driver is gone or its connection is lost, it cancels everything that
the driver submitted: however the driver ends, and over SSH as well.
"""

from __future__ import annotations

import asyncio
import functools
import re
import shlex
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import ParamSpec

import asyncssh
from streamflow.core.deployment import Connector, ExecutionLocation, Shell
from streamflow.core.exception import WorkflowExecutionException
from streamflow.log_handler import logger

from sf_quantum.connectors import guardian
from sf_quantum.connectors.slurm import answers, scripts
from sf_quantum.connectors.slurm.scripts import JobMark

P = ParamSpec("P")

LOOK_SECONDS = 2.0
LOOK_PAUSE_SECONDS = 0.1
RETRY_SECONDS = 1.0
# how long a driver that lost only its connection has to come back
GRACE_SECONDS = 45
LOCAL_GRACE_SECONDS = 3
ANSWER_SECONDS = 60
CLOSE_SECONDS = 5
# StreamFlow gives a local shell five seconds, and kills it then
END_SECONDS = 8
# where this line is missing, the connection was lost, whatever exit code StreamFlow makes
# of that: sbatch's, of an option that is wrong, is the same as that of an ssh that broke
_END = re.compile(r"(.*)^sfq ended with (\d+)", re.DOTALL | re.MULTILINE)
_BEGIN = """\
exec 2>&1
trap 'printf "\\nsfq ended with %d\\n" $?' EXIT"""

# A job that was being submitted shows up late, so nothing must be found several times in a
# row; a shell that has a successor leaves everything to it.
_SETUP = """\
trap '' HUP INT TERM PIPE
d={spool} run={run} me={me} grace={grace}
mkdir -p "$d" && chmod 700 "$d" && rm -f "$d/gone" && echo $me >"$d/owner" || exit
look() {{
  touch "$d/alive"
  n=$1; shift
  [ $# -eq 0 ] || rm -f "$@"
  while :; do
    set -- "$d"/*.mark
    [ ! -e "$1" ] || {{ cat "$@"; return; }}
    [ $n -gt 0 ] && [ ! -e "$d/stop" ] || return 0
    n=$((n - 1)); sleep {pause}
  done
}}
owner() {{ [ "$(cat "$d/owner")" = $me ]; }}
# a job that ends may still put something there
remove() {{
  n=0
  until rm -rf "$d" || [ $n -ge 20 ]; do n=$((n + 1)); sleep 0.1; done
}}
end() {{
  owner && touch "$d/gone" || return
  n=0
  while [ $n -lt $grace ]; do
    sleep 1; n=$((n + 1))
    owner || return
  done
  n=0 quiet=0
  while [ $n -lt 60 ] && [ $quiet -lt 3 ]; do
    if ids=$(squeue --noheader --user="$(id -un)" --format='%k %F'); then
      ids=$(echo "$ids" | sed -n "s/^sfq:$run:[^ ]* //p" | sort -u)
      if [ -n "$ids" ]; then quiet=0; scancel $ids; else quiet=$((quiet + 1)); fi
    fi
    n=$((n + 1)); sleep 0.5
  done
  remove
}}
# in the background: a connector kills a shell that does not end soon; dash waits for a
# function that has no parentheses
trap '(end) </dev/null >/dev/null 2>&1 &' EXIT"""


@contextmanager
def reaching(location: ExecutionLocation) -> Iterator[None]:
    """Raise one exception for all that StreamFlow and asyncssh raise on a lost connection.

    :raises WorkflowExecutionException: if the machine cannot be reached
    """
    try:
        yield
    except (OSError, asyncssh.Error) as error:
        message = str(error) or type(error).__name__
        raise WorkflowExecutionException(
            f"no connection to {location.name}: {message}"
        ) from error


class LoginNode:
    """The login node, for one run of a deployment.

    :param connector: of the inner deployment
    :param location: the inner one
    :param spool: see :mod:`sf_quantum.connectors.slurm.scripts`
    :param run: what the comments of this driver's jobs start with
    """

    def __init__(
        self,
        connector: Connector,
        location: ExecutionLocation,
        spool: str,
        run: str,
    ) -> None:
        self._connector = connector
        self._location = location
        self.spool = spool
        self._run = run
        self._shell: Shell | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._seen: list[str] = []

    @property
    def name(self) -> str:
        """Its host's."""
        return self._location.name

    @property
    def local(self) -> bool:
        """Whether it is the driver's own machine."""
        return self._location.local

    async def run(self, command: str) -> tuple[str, int]:
        """Run a shell command in a session of its own, so that it delays no other.

        It goes on when its caller is cancelled: StreamFlow's SSH connector does not
        recover from a cancelled connection attempt.

        :returns: its output, stderr included, and its exit code
        :raises WorkflowExecutionException: if the machine cannot be reached, or the
            connection was lost, so that it is not known what came of the command
        """
        words = ["sh", "-c", shlex.quote(f"{_BEGIN}\n{command}")]
        with reaching(self._location):
            # with an input of its own it does not go through the shell that all share
            result = await asyncio.shield(
                self._connector.run(
                    self._location, words, stdin="/dev/null", capture_output=True
                )
            )
        text = "" if result is None else result[0]
        if (ended := _END.fullmatch(text.rstrip())) is None:
            message = " ".join(text.split()) or "no message"
            raise WorkflowExecutionException(
                f"the connection to {self.name} was lost: {message}"
            )
        return ended[1].strip(), int(ended[2])

    async def write(self, file: str, content: bytes) -> None:
        """Write a file of mode 0600 through a pipe: command lines show in ``ps`` and logs.

        :param file: nothing is there afterwards if the content did not arrive whole
        :raises WorkflowExecutionException: if the machine cannot be reached
        """
        # others may write it at once or read it; a lost connection ends the input
        script = (
            f"umask 077; f={shlex.quote(file)}; t=$f.$$; "
            f"cat >$t && [ $(wc -c <$t) -eq {len(content)} ] && mv $t $f || rm -f $t"
        )
        with reaching(self._location):
            writer = await self._connector.get_stream_writer(
                ["sh", "-c", shlex.quote(script)], self._location
            )
            async with writer as stream:
                await stream.write(content)

    async def ask(self, command: str) -> tuple[str, int]:
        """Run a shell command that changes nothing, or nothing more if it is run again.

        :returns: as :meth:`run`; with exit code :data:`scripts.UNKNOWN`, and a message, if
            what came of it is not known
        """
        try:
            return await self.run(command)
        except WorkflowExecutionException as error:
            return str(error), scripts.UNKNOWN

    async def squeue(self, ids: Collection[str]) -> str | None:
        """Ask Slurm for jobs.

        :param ids: theirs, of which Slurm may have forgotten some
        :returns: what :func:`answers.squeue` reads; None if the command failed, which says
            nothing about a job
        """
        text, code = await self.ask(answers.squeue_command(",".join(ids)))
        if code == 0:
            return text
        # Slurm denies only one by itself, and leaves out of many what it does not know
        if len(ids) == 1 and answers.is_forgotten(text):
            return ""
        message = text or f"exit code {code}"
        warn(f"squeue failed, jobs are waited for all the same: {message}")
        return None

    async def sweep(self, key: str = "") -> bool:
        """Cancel what is in Slurm's queue under a key, or under any of this driver's.

        :returns: whether nothing of it is left for sure
        """
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                _, code = await self.run(
                    'jobs=$(squeue --noheader --user="$(id -un)" --format="%k %F") && '
                    f"echo \"$jobs\" | sed -n 's/^sfq:{self._run}:{key}[^ ]* //p' | "
                    "sort -u | xargs -r scancel"
                )
        except (WorkflowExecutionException, TimeoutError):
            return False
        return code == 0

    async def look(self, urgent: bool) -> list[JobMark]:
        """Give a sign of life, and find the marks left since the last time.

        :param urgent: wait up to :data:`LOOK_SECONDS` for one
        :returns: the marks, each once
        """
        polls = round(LOOK_SECONDS / LOOK_PAUSE_SECONDS) if urgent else 0
        seen = " ".join(shlex.quote(file) for file in self._seen)
        try:
            # the rest of an answer would be taken for the beginning of the next
            text = await asyncio.shield(self._execute(f"look {polls} {seen}"))
        except WorkflowExecutionException as error:
            warn(f"The marks of jobs are read again in {RETRY_SECONDS:g} s: {error}")
            self._drop()
            await asyncio.sleep(RETRY_SECONDS)
            return []
        marks = scripts.marks(text)
        if text and not marks:
            # what is no mark stays there, and is found again at once
            await asyncio.sleep(RETRY_SECONDS)
        self._seen = [scripts.path(self.spool, mark.key, "mark") for mark in marks]
        return marks

    async def close(self) -> None:
        """End the shell and remove what is in the spool."""
        # the shell may be looking
        stop = f": >{shlex.quote(self.spool)}/stop"
        await self._finish("trap - EXIT; remove", stop)

    async def leave(self) -> None:
        """End the shell, which cancels on the node what the driver could not."""
        await self._finish("grace=0", "true")

    async def _finish(self, last: str, before: str) -> None:
        """Give the shell its last command; one that hangs is left to itself.

        :param before: what is run beside it first
        """
        shell, self._shell = self._shell, None
        if shell is None:
            return
        with suppress(WorkflowExecutionException, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.run(before)
                with reaching(self._location):
                    await shell.execute([last], capture_output=True)
        await asyncio.wait({self._end(shell)}, timeout=END_SECONDS)

    async def _execute(self, command: str) -> str:
        with reaching(self._location):
            shell = await self._opened()
            result = await shell.execute(
                [command], capture_output=True, timeout=ANSWER_SECONDS
            )
        return result[0] if result else ""

    async def _opened(self) -> Shell:
        if self._shell is None or await self._shell.closed():
            # the driver's guardian must not end it: it cleans up after the driver itself
            me = uuid.uuid4().hex
            # connectors give the same shell for the same words, even one that hangs
            words = ["env", "-u", guardian.MARKER, f"SFQ_SHELL={me}", "sh"]
            shell = await self._connector.get_shell(words, self._location)
            setup = _SETUP.format(
                spool=shlex.quote(self.spool),
                run=self._run,
                me=me,
                pause=LOOK_PAUSE_SECONDS,
                grace=LOCAL_GRACE_SECONDS if self._location.local else GRACE_SECONDS,
            )
            await shell.execute([setup], capture_output=True, timeout=ANSWER_SECONDS)
            self._shell = shell
        return self._shell

    def _drop(self) -> None:
        """Leave a shell to itself: nothing must wait for one that hangs."""
        shell, self._shell = self._shell, None
        if shell is not None:
            self._end(shell)

    def _end(self, shell: Shell) -> asyncio.Task[None]:
        task = asyncio.create_task(_closed(shell, self._location))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task


async def _closed(shell: Shell, location: ExecutionLocation) -> None:
    with suppress(WorkflowExecutionException), reaching(location):
        await shell.close()


def survives_errors(
    work: Callable[P, Awaitable[None]],
) -> Callable[P, Coroutine[None, None, None]]:
    """Let no unexpected error end a task without which jobs are waited for for ever.

    :param work: what the task does, again later if it fails
    """

    @functools.wraps(work)
    async def surviving(*args: P.args, **options: P.kwargs) -> None:
        try:
            await work(*args, **options)
        except Exception as error:  # noqa: BLE001 - see above
            message = f"{type(error).__name__}: {error}"
            warn(f"Slurm's jobs are waited for all the same: {message}")
            logger.debug("An error while Slurm's jobs are waited for", exc_info=error)
            await asyncio.sleep(RETRY_SECONDS)

    return surviving


_warned: dict[str, float] = {}


def warn(text: str) -> None:
    """Log a warning, once a minute."""
    now = time.monotonic()
    if now - _warned.get(text, -60.0) >= 60:
        _warned[text] = now
        logger.warning(text)
