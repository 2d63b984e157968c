"""The shell on the login node that reports marks in the spool, and cleans up.

The shell stays open and reports the marks to the driver. When its input ends, because the
driver has ended or the connection is lost, it cancels all jobs that the driver submitted. This
works regardless of how the driver ends, and also over SSH.
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

POLL_SECONDS = 2.0
# Each pause is a process on the login node, unless the driver runs there. Pauses grow with
# the time since the latest event: the end of a job is noticed late by at most this part of
# that time.
POLL_PAUSE_SECONDS, MAX_POLL_PAUSE_SECONDS = 0.1, 0.5
POLL_PAUSE_PART, LOCAL_POLL_PAUSE_PART = 0.02, 0.01
# how long the shell waits for a driver that has lost its connection to reconnect
GRACE_SECONDS = 45
LOCAL_GRACE_SECONDS = 3
ANSWER_SECONDS = 60
# how many times the shell tries to remove the spool, for about a minute
REMOVALS = 600
# StreamFlow kills a local shell after five seconds
END_SECONDS = 8
#: A sed script that reads lines of the queue with the id, state and comment of a job.
#: It prints the id if the job belongs to the driver's run, or is a given job of this run. A
#: revoked job runs on another cluster.
OWN = r"/ REVOKED /d; s/^\([0-9]*\) [A-Z_]* sfq:{run}:{key}[^ ]*\( .*\)*$/\1/p"
# A job that was being submitted appears late in the queue, so the queue must be empty several
# consecutive times. If a cluster is down, each `squeue` would wait for minutes.
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
# A shell that has a successor leaves the clean-up to it.
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
        default Slurm's commands
    """

    def __init__(self, login: LoginNode, cancel: str = "") -> None:
        self.login = login
        self._cancel = cancel or _CANCEL.format(
            own=OWN.format(run=login.driver_run, key=""),
            patience=answers.PATIENCE_SECONDS,
        )
        self._shell: Shell | None = None
        # whether a remote shell is reading marks
        self._reading = False
        # Held while a shell is opened: of two opened shells, one would be forgotten and keep
        # running.
        self._opening = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self._seen: list[str] = []

    async def read_marks(self, quiet_seconds: float | None) -> list[JobMark]:
        """Update the driver's sign of life in the spool, and read the new marks.

        :param quiet_seconds: seconds since the latest event; the call then waits for a mark
            for up to :data:`POLL_SECONDS`. None to return immediately
        """
        part = LOCAL_POLL_PAUSE_PART if self.login.local else POLL_PAUSE_PART
        pause = part * (quiet_seconds or 0.0)
        pause = min(max(POLL_PAUSE_SECONDS, pause), MAX_POLL_PAUSE_SECONDS)
        polls = 0 if quiet_seconds is None else math.ceil(POLL_SECONDS / pause)
        if self.login.local:
            # marks that have been read are removed first
            await self._wait_for_mark(0 if self._seen else polls, pause)
            polls = 0
        seen = " ".join(shlex.quote(file) for file in self._seen)
        try:
            # the rest of an interrupted answer would be taken for the next answer
            text = await asyncio.shield(
                self._execute(f"read_marks {polls} {pause:.2f} {seen}")
            )
        except WorkflowExecutionException as error:
            login.warn(
                f"Cannot read job marks, next attempt in {login.RETRY_SECONDS:g} s: {error}"
            )
            shell, self._shell = self._shell, None
            if shell is not None:
                self._end(shell)
            await asyncio.sleep(login.RETRY_SECONDS)
            return []
        marks = scripts.marks(text)
        if text and not marks:
            # an invalid mark is not removed, and would be read again immediately
            await asyncio.sleep(login.RETRY_SECONDS)
        # The scripts of the jobs are removed with the marks: one `rm` here saves one in
        # each job.
        self._seen = [
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
        with suppress(
            OSError
        ):  # the shell makes the spool, and reports errors about it
            return any(name.endswith(".mark") for name in os.listdir(self.login.spool))
        return False

    async def close(self) -> None:
        """End the shell and remove the spool."""
        # The removal continues in the background if the shell is killed meanwhile.
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
            async with asyncio.timeout(login.CLOSE_SECONDS):
                if self._reading:  # the shell may be waiting for marks
                    await self.login.run(f": >{shlex.quote(self.login.spool)}/stop")
                with login.reaching(self.login.location):
                    await shell.execute([last], capture_output=True)
        await asyncio.wait({self._end(shell)}, timeout=END_SECONDS)

    async def _execute(self, command: str) -> str:
        with login.reaching(self.login.location):
            async with self._opening:
                shell = await self._opened()
            self._reading = True
            try:
                result = await shell.execute(
                    [command], capture_output=True, timeout=ANSWER_SECONDS
                )
            finally:
                self._reading = False
        return result[0] if result else ""

    async def _opened(self) -> Shell:
        if self._shell is None or await self._shell.closed():
            # the driver's guardian must not end this shell, which cleans up after the driver
            me = uuid.uuid4().hex
            # connectors return the same shell for the same command, even if it hangs
            words = ["env", "-u", guardian.MARKER, f"{guardian.OUTLIVES}={me}", "sh"]
            if self.login.local:
                # a signal to the driver's process group does not end the shell
                words.insert(-1, "setsid")
            shell = await self.login.connector.get_shell(words, self.login.location)
            setup = _SETUP.format(
                plain=scripts.PLAIN,
                cancelling=login.CANCEL_JOBS,
                cancel=self._cancel,
                spool=shlex.quote(self.login.spool),
                me=me,
                pause=POLL_PAUSE_SECONDS,
                removals=REMOVALS,
                grace=LOCAL_GRACE_SECONDS if self.login.local else GRACE_SECONDS,
            )
            await shell.execute([setup], capture_output=True, timeout=ANSWER_SECONDS)
            self._shell = shell
        return self._shell

    def _end(self, shell: Shell) -> asyncio.Task[None]:
        """Close a shell in the background, since it may hang."""

        async def close() -> None:
            with (
                suppress(WorkflowExecutionException),
                login.reaching(self.login.location),
            ):
                await shell.close()

        task = asyncio.create_task(close())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task
