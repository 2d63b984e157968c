"""A job's command with the leases of its QPUs around it.

With QRMI's SPANK plugin Slurm has taken them, and the command is only looked after; else
``sfq lease`` takes them. Either way it leaves an account of the QPU jobs.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from sf_quantum.connectors import qpu_jobs
from sf_quantum.connectors.hints import JobHints
from sf_quantum.qpu import RESOURCES, account

# sysexits.h: EX_TEMPFAIL
TRY_AGAIN = 75
# The plugin leaves out what it cannot acquire (spank_qrmi.c), and such a job would be a
# silent classical run.
_SPANK = """\
have=",${{{own}-$SLURM_JOB_QPU_RESOURCES}},"
for qpu in {names}; do
  case $have in *",$qpu,"*) continue ;; esac
  echo "sfq: Slurm's SPANK plugin gave this job no lease of QPU $qpu" >&2
  exit {code}
done
if command -v sfq >/dev/null; then exec {lease}; fi
echo {untold} >{file}
exec {command}"""


@dataclass(frozen=True)
class Use:
    """A job's use of its QPUs.

    :param job: StreamFlow's name of it
    :param account: what the names of the files start with that it leaves
    :param config: the QPUs' definitions on the cluster; None for those that its
        environment has
    :param wish: for its wait on the node; the plugin can be told of none, but what runs
        under it leaves a QPU that goes offline, if it can run elsewhere
    :param waited: how many seconds it waited before it was submitted
    """

    job: str
    qpus: Sequence[str]
    spank: bool
    account: str
    config: str | None
    wish: JobHints = field(default_factory=JobHints)
    waited: float = 0.0

    def command(self, line: str) -> str:
        """Wrap the job's command.

        :param line: for ``sh``
        :returns: another, which runs it under its leases and leaves an account
        """
        key = qpu_jobs.job_key(self.job)
        keys = [f"{name}_SFQ_JOB_KEY={key}" for name in self.qpus]
        purpose = shlex.quote(qpu_jobs.purpose(self.job))
        keys += [f"{name}_SFQ_PURPOSE={purpose}" for name in self.qpus]
        # the tasks of an array have one of these each
        file = f'{shlex.quote(self.account)}."$SLURM_JOB_ID"'
        command = f"/bin/sh -c {shlex.quote(line)}"
        lease = f"env {' '.join(keys)} sfq lease --qpu {','.join(self.qpus)}"
        rest = f"--account {file} -- {command}"
        if not self.spank:
            known = f"--qrmi-config {shlex.quote(self.config)} " if self.config else ""
            return f"{lease} {known}{self._wishes()}{self._leaves()}{rest}"
        untold = account.CommandRun(
            0, [account.LeaseUsage(name, None) for name in self.qpus]
        )
        wrapped = _SPANK.format(
            own=RESOURCES[0],
            names=" ".join(self.qpus),
            code=TRY_AGAIN,
            lease=f"{lease} --held {self._leaves()}{rest}",
            untold=shlex.quote(account.dumps(untold)),
            file=file,
            command=command,
        )
        return f"/bin/sh -c {shlex.quote(wrapped)}"

    def _leaves(self) -> str:
        return "--elsewhere " if self.wish.has_alternative else ""

    def _wishes(self) -> str:
        """Options of ``sfq lease``."""
        wished = {
            "wait": self.wish.wait_seconds,
            "expected-seconds": self.wish.lease_hints.get("expectedSeconds"),
            "pattern": self.wish.lease_hints.get("pattern"),
        }
        return "".join(f"--{k} {v} " for k, v in wished.items() if v is not None)
