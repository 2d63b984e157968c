"""The shell on the login node that reports marks in the spool, and cleans up.

The shell stays open, and reports marks to the driver. When the shell's input ends, because the
driver has ended or the connection is lost, the shell cancels all jobs that the driver has
submitted. This works regardless of how the driver ends, even over SSH.
"""

from __future__ import annotations

import asyncio
import math
import os
import shlex
import uuid
from contextlib import suppress

from streamflow.core.deployment import Shell
from streamflow.core.exception import WorkflowExecutionException

from sf_quantum.connectors import guardian
from sf_quantum.connectors.slurm import scripts
from sf_quantum.connectors.slurm.scripts import JobMark
from sf_quantum.connectors.slurm.transport import answers, login
from sf_quantum.connectors.slurm.transport.login import LoginNode

# longest time for which the shell waits for marks before it answers
POLL_SECONDS = 2.0
# Bounds of the pauses between two polls. On a remote login node, each pause starts a process.
# So pauses grow: a pause is the given fraction of the time since the latest event, by which
# the end of a job is then noticed late at most.
POLL_PAUSE_SECONDS, MAX_POLL_PAUSE_SECONDS = 0.1, 0.5
POLL_PAUSE_PART, LOCAL_POLL_PAUSE_PART = 0.02, 0.01
# how long the shell waits for a driver to reconnect when the connection is lost
GRACE_SECONDS = 45
LOCAL_GRACE_SECONDS = 3
# longest wait for the shell's answer to a command
ANSWER_SECONDS = 60
# number of the shell's attempts to remove the spool, which take about a minute
REMOVALS = 600
# Longest wait for a shell to close; StreamFlow kills a local shell after five seconds.
END_SECONDS = 8
#: A sed script that reads lines of the queue with the id, state and comment of a job. It
#: prints the id if the job belongs to the driver's run and, if ``key`` is not empty, is the
#: job with this key. Revoked jobs are skipped, as they run on another cluster.
OWN = r"/ REVOKED /d; s/^\([0-9]*\) [A-Z_]* sfq:{run}:{key}[^ ]*\( .*\)*$/\1/p"
# Cancels the driver's jobs until the queue has been empty several consecutive times, since a
# job that was being submitted may appear late. The time is limited: if a cluster is down, each
# `squeue` waits for minutes.
_CANCEL = """\
  n=0 quiet=0 heard=$(date +%s)
  while [ $n -lt 60 ] && [ $quiet -lt 3 ] &&
    [ $(($(date +%s) - heard)) -lt {patience} ]
  do
    quiet=$((quiet + 1)) answered=1
    # the jobs are on the login node's own cluster, or on those that they named
    for at in --sibling $(sort -u "$d/clusters" 2>/dev/null); do
      if ids=$(plain timeout {patience} squeue $at --noheader --user="$(id -un)" --format='%F %T %k'); then
        ids=$(echo "$ids" | sed -n '{own}' | sort -u)
        [ -z "$ids" ] || {{ quiet=0; cancel "${{at#--sibling}}" $ids; }}
      else
        quiet=0 answered=
      fi
    done
    [ -z "$answered" ] || heard=$(date +%s)
    n=$((n + 1)); sleep 0.5
  done"""
# Sets up the shell. If the driver has opened another shell, which owns the spool, this shell
# leaves the clean-up to the other.
_SETUP = """\
{plain}
{cancelling}
trap '' HUP INT TERM PIPE
d={spool} me={me} grace={grace}
mkdir -p "$d" && chmod 700 "$d" && rm -f "$d/gone" && echo $me >"$d/owner" || exit
read_marks() {{
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
# a job that is ending may still write files into the spool, for long on a busy node
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
# the end runs in the background, since a connector kills a shell that does not end soon; dash
# would wait for a function without the parentheses
trap '(end) </dev/null >/dev/null 2>&1 &' EXIT"""


class SpoolShell:
    """The shell, for one run of a deployment.

    :param cancel: shell commands that end the driver's jobs after the driver's end; by
        default, the jobs are cancelled with Slurm's commands
    """

    def __init__(self, login: LoginNode, cancel: str = "") -> None:
        self.login = login
        self._cancel = cancel or _CANCEL.format(
            own=OWN.format(run=login.driver_run, key=""),
            patience=answers.PATIENCE_SECONDS,
        )
        self._shell: Shell | None = None
        # whether a remote shell is reading marks
        self._is_reading = False
        # Held while a shell is being opened. If two were opened, one would be forgotten, and
        # keep running.
        self._opening_lock = asyncio.Lock()
        self._closing_tasks: set[asyncio.Task[None]] = set()
        self._read_files: list[str] = []

    async def read_marks(self, quiet_seconds: float | None) -> list[JobMark]:
        """Update the driver's sign of life in the spool, and read new marks.

        :param quiet_seconds: seconds since the latest event; ``None`` to return immediately
            instead of waiting up to :data:`POLL_SECONDS` for a mark
        """
        part = LOCAL_POLL_PAUSE_PART if self.login.local else POLL_PAUSE_PART
        pause = part * (quiet_seconds or 0.0)
        pause = min(max(POLL_PAUSE_SECONDS, pause), MAX_POLL_PAUSE_SECONDS)
        polls = 0 if quiet_seconds is None else math.ceil(POLL_SECONDS / pause)
        if self.login.local:
            # Marks that have been read must first be removed, so there is no wait.
            await self._wait_for_mark(0 if self._read_files else polls, pause)
            polls = 0
        seen = " ".join(shlex.quote(file) for file in self._read_files)
        try:
            # Shielded: if the call were interrupted, the rest of its answer would be taken for
            # the next answer.
            text = await asyncio.shield(
                self._execute(f"read_marks {polls} {pause:.2f} {seen}")
            )
        except WorkflowExecutionException as error:
            login.warn(
                f"Cannot read job marks, next attempt in {login.RETRY_SECONDS:g} s: {error}"
            )
            shell, self._shell = self._shell, None
            if shell is not None:
                self._close_in_background(shell)
            await asyncio.sleep(login.RETRY_SECONDS)
            return []
        marks = scripts.marks(text)
        if text and not marks:
            # An invalid mark is not removed: wait, since it would be read again immediately.
            await asyncio.sleep(login.RETRY_SECONDS)
        # The jobs' scripts are removed together with the marks: one `rm` here saves an `rm` in
        # each job.
        self._read_files = [
            scripts.path(self.login.spool, mark.key, kind)
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
        with suppress(OSError):  # the shell creates the spool, and reports errors
            return any(name.endswith(".mark") for name in os.listdir(self.login.spool))
        return False

    async def close(self) -> None:
        """End the shell, and remove the spool."""
        # If the shell is killed in the meantime, the removal continues in the background.
        background = "(remove) </dev/null >/dev/null 2>&1 & wait $!"
        await self._finish(f"trap - EXIT; {background}")

    async def leave(self) -> None:
        """End the shell; it then cancels the jobs that the driver could not cancel."""
        await self._finish("grace=0")

    async def _finish(self, last: str) -> None:
        """Run a last command in the shell, and close it even if it hangs."""
        shell, self._shell = self._shell, None
        if shell is None:
            return
        with suppress(WorkflowExecutionException, TimeoutError):
            async with asyncio.timeout(login.CLOSE_SECONDS):
                if self._is_reading:  # the shell may be waiting for marks
                    await self.login.run(f": >{shlex.quote(self.login.spool)}/stop")
                with login.reaching(self.login.location):
                    await shell.execute([last], capture_output=True)
        await asyncio.wait({self._close_in_background(shell)}, timeout=END_SECONDS)

    async def _execute(self, command: str) -> str:
        """Run a command in the shell, which is opened if needed; return the output."""
        with login.reaching(self.login.location):
            async with self._opening_lock:
                shell = await self._open_shell()
            self._is_reading = True
            try:
                result = await shell.execute(
                    [command], capture_output=True, timeout=ANSWER_SECONDS
                )
            finally:
                self._is_reading = False
        return result[0] if result else ""

    async def _open_shell(self) -> Shell:
        """Return the shell; open a new one if there is none, or it has closed."""
        if self._shell is None or await self._shell.closed():
            # The driver's guardian must not end this shell, which cleans up after the driver.
            shell_id = uuid.uuid4().hex
            # For the same command, connectors return the same shell, even if it hangs; so the
            # command contains a new id.
            words = [
                "env",
                "-u",
                guardian.MARKER,
                f"{guardian.OUTLIVES}={shell_id}",
                "sh",
            ]
            if self.login.local:
                # With setsid, a signal to the driver's process group does not end the shell.
                words.insert(-1, "setsid")
            shell = await self.login.connector.get_shell(words, self.login.location)
            setup = _SETUP.format(
                plain=scripts.PLAIN,
                cancelling=login.CANCEL_JOBS,
                cancel=self._cancel,
                spool=shlex.quote(self.login.spool),
                me=shell_id,
                pause=POLL_PAUSE_SECONDS,
                removals=REMOVALS,
                grace=LOCAL_GRACE_SECONDS if self.login.local else GRACE_SECONDS,
            )
            await shell.execute([setup], capture_output=True, timeout=ANSWER_SECONDS)
            self._shell = shell
        return self._shell

    def _close_in_background(self, shell: Shell) -> asyncio.Task[None]:
        """Close a shell in the background, since it may hang."""

        async def close() -> None:
            with (
                suppress(WorkflowExecutionException),
                login.reaching(self.login.location),
            ):
                await shell.close()

        task = asyncio.create_task(close())
        self._closing_tasks.add(task)
        task.add_done_callback(self._closing_tasks.discard)
        return task
