"""The scripts that run on the cluster, and what they leave behind.

Everything is kept in the *spool*, a folder of mode 0700 beside the jobs' own, on the file
system that nodes and login node share. A script that ends leaves a *mark* there, one line
that is complete as soon as it is seen::

    KEY SLURM_JOB EXIT_CODE STARTED ENDED OUTPUT_BYTES

and one of an allocation, as soon as it has its nodes::

    KEY SLURM_JOB up STARTED - 0
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from sf_quantum.connectors.slurm.options import directives, interpreter

# Bash and dash both start a command in the background with its input from /dev/null
# unless told otherwise; it runs there so that signals reach it while the shell waits.
_RUN = """\
rm -f "$d/$k.$m"
began=$(date +%s.%N)
cat >"$d/$k.sh" <<'{end}'
{body}
{end}
ended=
trap 'ended=1; kill -TERM $pid' TERM
for s in USR1 USR2 HUP CONT; do trap "kill -$s \\$pid" $s; done
exec 3<&0
{interpreter} "$d/$k.sh" <&3 3<&- &
pid=$!
wait $pid; code=$?
while kill -0 $pid 2>/dev/null; do wait $pid; code=$?; done
rm -f "$d/$k.sh"
# one that Slurm ends is Slurm's to tell of
[ -n "$ended" ] || mark $code $(date +%s.%N)
exit $code"""
_MARK = """\
mark() {
  size=$(wc -c 2>/dev/null <"$d/$k.out")
  echo "$k $SLURM_JOB_ID $1 $began $2 ${size:-0}" >"$d/$k.tmp" && mv "$d/$k.tmp" "$d/$k.$m"
}"""
# sbatch may have reached Slurm although it said no, so the same job may come twice
_ONCE = """\
(set -C; echo "$SLURM_JOB_ID" >"$d/$k.lock") 2>/dev/null
[ "$(cat "$d/$k.lock")" = "$SLURM_JOB_ID" ] || exit 0"""
_HOLD = """\
export -p | grep '^export SLURM_' >"$d/$k.env"
began=$(date +%s.%N)
mark up -
while sleep {pause}; do
  now=$(date +%s)
  alive=$(stat -c %Y "$d/alive" 2>/dev/null) || exit 0
  [ $((now - alive)) -lt {orphan} ] || exit 0
  gone=$(stat -c %Y "$d/gone" 2>/dev/null) || continue
  [ $((now - gone)) -lt {gone} ] || exit 0
done"""
# what `srun` sets describes the one task, not the allocation that the script has
_STEP = """\
for v in $(env | sed -n 's/^\\(SLURM_[A-Za-z0-9_]*\\)=.*/\\1/p'); do unset "$v"; done
. "$d/{holder}.env\""""
# the variables of a component are there under names of their own
_COMPONENT = """\
eval "$(export -p | sed -n 's/_HET_GROUP_{group}=/=/p')"
export SLURM_JOB_ID="$SLURM_JOB_ID_HET_GROUP_0" SLURM_NNODES="$SLURM_JOB_NUM_NODES"
export SLURM_NODELIST="$SLURM_JOB_NODELIST" SFQ_HET_GROUP={group}"""

#: an allocation looks so often whether its driver lives
PAUSE_SECONDS = 5
#: how long an allocation outlives its driver at most
GONE_SECONDS = 55


@dataclass(frozen=True)
class Mark:
    """What a script left behind: see the module.

    :param exit_code: None for an allocation that has its nodes
    """

    key: str
    slurm_job: str
    exit_code: int | None
    started: float
    ended: float | None
    output_bytes: int


def marks(text: str) -> list[Mark]:
    """Read the marks that were found.

    :param text: the lines
    :returns: the marks
    """
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) == 6:
            key, job, code, started, ended, size = words
            up = code == "up"
            found.append(
                Mark(
                    *(key, job, None if up else int(code), float(started)),
                    *(None if up else float(ended), int(size)),
                )
            )
    return found


def job(spool: str, key: str, body: str, marked: bool = True) -> str:
    """A batch job that runs a script and leaves a mark.

    :param spool: the folder
    :param key: the job's own
    :param body: the script, with the directives that it brings
    :param marked: False for an array, whose tasks share the key
    :returns: the script for ``sbatch``
    """
    if not marked:
        return body
    return "\n".join([*_head(spool, key, directives(body)), _ONCE, _run(key, body)])


def step(spool: str, key: str, body: str, holder: str, group: int) -> str:
    """A script that runs within an allocation as if that were its own batch job.

    :param spool: the folder
    :param key: the job's own
    :param body: the script
    :param holder: the allocation's key
    :param group: the component of a heterogeneous allocation, 0 for the first or only one
    :returns: a shell script
    """
    # whoever runs it reads its mark, not the login node's shell
    lines = [*_head(spool, key, [], "done"), _STEP.format(holder=holder)]
    if group > 0:
        lines.append(_COMPONENT.format(group=group))
    return "\n".join([*lines, _run(key, body)])


def holder(spool: str, key: str, lines: Iterable[str], orphan_seconds: float) -> str:
    """A batch job that only holds its nodes, as long as somebody wants them.

    :param spool: the folder
    :param key: the allocation's
    :param lines: the directives for ``sbatch``
    :param orphan_seconds: how old the driver's last sign of life may get
    :returns: the script for ``sbatch``
    """
    hold = _HOLD.format(
        pause=PAUSE_SECONDS, orphan=int(orphan_seconds), gone=GONE_SECONDS
    )
    return "\n".join([*_head(spool, key, lines), _ONCE, hold])


def path(spool: str, key: str, kind: str) -> str:
    """A file of a job in the spool."""
    return posixpath.join(spool, f"{key}.{kind}")


def _head(spool: str, key: str, lines: Iterable[str], kind: str = "mark") -> list[str]:
    return ["#!/bin/sh", *lines, f"d={shlex.quote(spool)} k={key} m={kind}", _MARK]


def _run(key: str, body: str) -> str:
    return _RUN.format(end=f"END-{key}", body=body, interpreter=interpreter(body))
