"""The machine where Slurm's commands are: what runs there, and who cleans up there.

One shell stays open on it. It looks for marks in the spool while the driver asks, and when
its input ends, because the driver is gone or its connection is lost, it ends everything
that the driver submitted. So that works however the driver ends, over SSH as well.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import time
import uuid
from contextlib import suppress

from streamflow.core.deployment import Connector, ExecutionLocation, Shell
from streamflow.core.exception import WorkflowExecutionException
from streamflow.log_handler import logger

from sf_quantum.connectors import guardian
from sf_quantum.connectors.slurm import script
from sf_quantum.connectors.slurm.script import Mark

LOOK_SECONDS = 2.0
LOOK_PAUSE_SECONDS = 0.1
RETRY_SECONDS = 1.0
# a driver that lost only its connection has so long to come back
GRACE_SECONDS = 45
LOCAL_GRACE_SECONDS = 3

# A job that was being submitted shows up late, so nothing must be found more than once;
# a shell that another one has followed leaves everything to that.
_SETUP = """\
trap '' HUP INT TERM PIPE
d={spool} run={run} clusters={clusters} me={me} grace={grace}
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
end() {{
  owner && touch "$d/gone" || return
  n=0
  while [ $n -lt $grace ]; do
    sleep 1; n=$((n + 1))
    owner || return
  done
  n=0 quiet=0
  while [ $n -lt 60 ] && [ $quiet -lt 3 ]; do
    if ids=$(squeue $clusters --noheader --user="$(id -un)" --format='%k %F'); then
      ids=$(echo "$ids" | sed -n "s/^sfq:$run:[^ ]* //p" | sort -u)
      if [ -n "$ids" ]; then quiet=0; scancel $clusters $ids; else quiet=$((quiet + 1)); fi
    fi
    n=$((n + 1)); sleep 0.5
  done
  rm -rf "$d"
}}
# in the background: a connector kills a shell that does not end soon; dash waits for a
# function that has no parentheses
trap '(end) </dev/null >/dev/null 2>&1 &' EXIT"""


class Login:
    """The login node, for one run of a deployment.

    :param connector: of the inner deployment
    :param location: the inner one
    :param spool: see :mod:`sf_quantum.connectors.slurm.script`
    :param run: what the comments of this driver's jobs start with
    :param clusters: the value of ``--clusters``, if any service has one
    """

    def __init__(
        self,
        connector: Connector,
        location: ExecutionLocation,
        spool: str,
        run: str,
        clusters: str | None = None,
    ) -> None:
        self._connector = connector
        self._location = location
        self.spool = spool
        self._run = run
        self._clusters = f"--clusters={clusters}" if clusters else ""
        self._shell: Shell | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._seen: list[str] = []

    @property
    def local(self) -> bool:
        """Whether it is the driver's own machine."""
        return self._location.local

    async def run(self, command: str) -> tuple[str, int]:
        """Run a shell command and wait for it.

        :param command: for ``sh``
        :returns: its output, stderr included, and its exit code
        :raises WorkflowExecutionException: if the machine cannot be reached
        """
        words = ["sh", "-c", shlex.quote(command), "2>&1"]
        result = await self._connector.run(self._location, words, capture_output=True)
        return result if result is not None else ("", 0)

    async def run_job(self, job: str, command: str) -> tuple[str, int]:
        """Run a shell command that may last, so that it holds up no other."""
        result = await self._connector.run(
            self._location,
            ["sh", "-c", shlex.quote(command), "2>&1"],
            capture_output=True,
            job_name=job,
        )
        return result if result is not None else ("", 0)

    async def squeue(self, options: str) -> str | None:
        """Ask Slurm for jobs.

        :returns: what ``squeue`` printed; None if it failed, which says nothing of a job
        """
        command = f"SLURM_TIME_FORMAT=%s squeue {self._clusters} --noheader {options}"
        try:
            text, code = await self.run(command)
        except WorkflowExecutionException as error:
            text, code = str(error), 1
        if code == 0:
            return text
        if "Invalid job id" in text:  # the only one asked for is forgotten
            return ""
        _warn(f"squeue failed, jobs are waited for all the same: {text}")
        return None

    async def look(self, urgent: bool) -> list[Mark]:
        """Give a sign of life, and find the marks left since the last time.

        :param urgent: wait a little for one to be left
        :returns: the marks, each once
        """
        polls = round(LOOK_SECONDS / LOOK_PAUSE_SECONDS) if urgent else 0
        try:
            shell = await self._opened()
            seen = " ".join(shlex.quote(file) for file in self._seen)
            told = await shell.execute(
                [f"look {polls} {seen}"], capture_output=True, timeout=60
            )
        except (WorkflowExecutionException, OSError) as error:
            _warn(f"no connection to {self._location.name}: {error}")
            self._drop()
            await asyncio.sleep(RETRY_SECONDS)
            return []
        found = script.marks(told[0] if told else "")
        self._seen = [script.path(self.spool, mark.key, "mark") for mark in found]
        return found

    async def close(self) -> None:
        """End the shell and remove what is in the spool."""
        shell, self._shell = self._shell, None
        if shell is None:
            return
        with suppress(WorkflowExecutionException, OSError, TimeoutError):
            async with asyncio.timeout(5):
                # the shell may be looking
                await self.run(f": >{shlex.quote(self.spool)}/stop")
                await shell.execute(['trap - EXIT; rm -rf "$d"'], capture_output=True)
        with suppress(WorkflowExecutionException, OSError):
            await shell.close()

    async def leave(self) -> None:
        """End the shell, which ends on the node what the driver could not."""
        shell, self._shell = self._shell, None
        if shell is not None:
            with suppress(WorkflowExecutionException, OSError, TimeoutError):
                async with asyncio.timeout(5):
                    await shell.execute(["grace=0"])
            with suppress(WorkflowExecutionException, OSError):
                await shell.close()

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
                clusters=shlex.quote(self._clusters),
                pause=LOOK_PAUSE_SECONDS,
                grace=LOCAL_GRACE_SECONDS if self._location.local else GRACE_SECONDS,
            )
            await shell.execute([setup], capture_output=True, timeout=60)
            self._shell = shell
        return self._shell

    def _drop(self) -> None:
        """Leave a shell to itself: to wait for one that hangs holds up everything."""
        shell, self._shell = self._shell, None
        if shell is not None:
            task = asyncio.create_task(_end(shell))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


async def _end(shell: Shell) -> None:
    with suppress(WorkflowExecutionException, OSError):
        await shell.close()


_warned: dict[str, float] = {}


def _warn(text: str) -> None:
    """Say what goes on for a while once a minute."""
    now = time.monotonic()
    if now - _warned.get(text, -60.0) >= 60 and logger.isEnabledFor(logging.WARNING):
        _warned[text] = now
        logger.warning(text)
