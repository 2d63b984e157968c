"""The scripts that run on the cluster, and what they leave behind.

Everything is kept in the *spool*, a folder of mode 0700 beside the jobs' own, on the file
system that nodes and login node share. A script that ends leaves a *mark* there, one line
that is complete as soon as it is seen::

    KEY SLURM_JOB EXIT_CODE STARTED ENDED OUTPUT_BYTES

and one of an allocation, as soon as it has its nodes::

    KEY SLURM_JOB up STARTED - 0

For a step within an allocation whose script could leave none, the login node's ``srun``
leaves one, with the time 0 if the script never began::

    KEY SLURM_JOB EXIT_CODE STARTED - 0
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from sf_quantum.connectors.slurm.options import directives, interpreter

# Bash and dash both start a command in the background with its input from /dev/null and
# deaf to SIGINT and SIGQUIT unless told otherwise (coreutils 8.31 can); it runs there so
# that signals reach it while the shell waits.
_RUN = """\
rm -f "$d/$k.mark"
began=$(date +%s.%N)
cat >"$d/$k.sh" <<'{end}'
{body}
{end}
ended=
trap 'ended=1; kill -TERM $pid 2>/dev/null' TERM
for s in INT QUIT USR1 USR2 HUP CONT; do trap "kill -$s \\$pid 2>/dev/null" $s; done
hears="env --default-signal=INT,QUIT"
$hears true 2>/dev/null || hears=
exec 3<&0
$hears {interpreter} "$d/$k.sh" <&3 3<&- &
pid=$!
wait $pid; code=$?
while kill -0 $pid 2>/dev/null; do wait $pid; code=$?; done
rm -f "$d/$k.sh"
# Slurm ends the command and this shell one after the other; what Slurm ends it tells of
[ $code -ne 0 ] || sleep 0.02
[ -n "$ended" ] || mark $code $(date +%s.%N)
[ $code -ne 143 ] || {{ trap - TERM; kill -TERM $$; }}
exit $code"""
_MARK = """\
mark() {
  size=$(wc -c 2>/dev/null <"$d/$k.out")
  echo "$k $SLURM_JOB_ID $1 $began $2 ${size:-0}" >"$d/$k.tmp" && mv "$d/$k.tmp" "$d/$k.mark"
  rm -f "$d/$k.began"
}"""
# sbatch may have reached Slurm although it said no, so the same job may come twice
_ONCE = """\
(set -C; echo "$SLURM_JOB_ID" >"$d/$k.lock") 2>/dev/null
[ "$(cat "$d/$k.lock")" = "$SLURM_JOB_ID" ] || exit 0"""
_HOLD = """\
# got by salloc it has no batch job: this is a step, told of its one task and node
if [ -n "$SLURM_STEP_ID" ]; then
  trap 'scancel "$SLURM_JOB_ID"' EXIT
  for v in $(env | sed -n 's/^\\(SLURM_\\(STEP\\|NTASKS\\|NPROCS\\|TASK\\)[A-Z_]*\\)=.*/\\1/p'); do
    unset "$v"
  done
  SLURM_JOB_NODELIST=$SLURM_NODELIST
  SLURM_NNODES=$(scontrol show hostnames "$SLURM_NODELIST" | wc -l)
  SLURM_JOB_NUM_NODES=$SLURM_NNODES
  export SLURM_JOB_NODELIST SLURM_NNODES SLURM_JOB_NUM_NODES
fi
# QRMI's SPANK plugin gives an allocation its leases, with a prefix for each QPU
q=
for n in $(echo "${{QRMI_JOB_QPU_RESOURCES-$SLURM_JOB_QPU_RESOURCES}}" | tr , ' '); do
  q="$q|$n"_
done
(umask 077; export -p | grep -E "^export (SLURM_|QRMI_$q)" >"$d/$k.env")
began=$(date +%s.%N)
mark up -
while sleep {pause}; do
  # by the clock of the file system, as the others
  now=$(: >"$d/$k.now"; stat -c %Y "$d/$k.now")
  # a file that has been opened is not told of from NFS's cache
  cat "$d/alive" "$d/gone" >/dev/null 2>&1
  alive=$(stat -c %Y "$d/alive" 2>/dev/null) || exit 0
  [ $((now - alive)) -lt {orphan} ] || exit 0
  gone=$(stat -c %Y "$d/gone" 2>/dev/null) || continue
  [ $((now - gone)) -lt {gone} ] || exit 0
done"""
# what `srun` sets describes the one task, not the allocation that the script has
_STEP = """\
for v in $(env | sed -n 's/^\\(SLURM_[A-Za-z0-9_]*\\)=.*/\\1/p'); do unset "$v"; done
. "$d/{holder}.env"
exec {streams}
date +%s.%N >"$d/$k.began\""""
# the variables of a component are there under names of their own, and `srun` has to be told
# which it is for: no variable does that
_COMPONENT = """\
eval "$(export -p | sed -n 's/_HET_GROUP_{group}=/=/p')"
export SLURM_JOB_ID="$SLURM_JOB_ID_HET_GROUP_0" SLURM_NNODES="$SLURM_JOB_NUM_NODES"
export SLURM_NODELIST="$SLURM_JOB_NODELIST" PATH="$d/srun{group}:$PATH"
mkdir -p "$d/srun{group}"
cat >"$d/$k.tmp" <<'END-SRUN' && chmod +x "$d/$k.tmp" && mv "$d/$k.tmp" "$d/srun{group}/srun"
#!/bin/sh
PATH=$(echo "$PATH" | sed "s|${{0%/*}}:||") exec srun --het-group={group} "$@"
END-SRUN"""

# a script that has left its mark removes what else tells that it began
_SRUN = """\
f={file}
(set -C; : >"$f"tried) 2>/dev/null || exit 0
cat >"$f"step <<'{end}'
{body}
{end}
echo 0 >"$f"began
for v in $(env | sed -n 's/^\\(SLURM_[A-Za-z0-9_]*\\)=.*/\\1/p'); do
  [ $v = SLURM_CONF ] || unset $v
done
{{
  srun --quiet {options} /bin/sh "$f"step >"$f"srun 2>&1; code=$?
  if began=$(cat "$f"began 2>/dev/null); then
    echo "{key} {slurm_job} $code $began - 0" >"$f"gone
    ln "$f"gone "$f"mark
  fi
  rm -f "$f"step "$f"began "$f"gone
}} </dev/null >/dev/null 2>&1 &"""

#: an allocation looks so often whether its driver lives
PAUSE_SECONDS = 5
#: how long an allocation outlives its driver at most
GONE_SECONDS = 55


@dataclass(frozen=True)
class Mark:
    """What a script left behind: see the module.

    :param exit_code: None for an allocation that has its nodes
    :param ended: None as well if the script did not tell of its end
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
            found.append(
                Mark(
                    *(key, job, None if code == "up" else int(code), float(started)),
                    *(None if ended == "-" else float(ended), int(size)),
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


def step(
    spool: str,
    key: str,
    body: str,
    streams: str,
    holder: str,
    group: int | None,
) -> str:
    """A script that runs within an allocation as if that were its own batch job.

    :param spool: the folder
    :param key: the job's own
    :param body: the script
    :param streams: redirections, for a shell
    :param holder: the allocation's key
    :param group: the component of a heterogeneous allocation, None if it is none
    :returns: a shell script
    """
    lines = [*_head(spool, key, []), _STEP.format(holder=holder, streams=streams)]
    if group:
        lines.append(_COMPONENT.format(group=group))
    return "\n".join([*lines, _run(key, body)])


def srun(spool: str, key: str, slurm_job: str, options: str, body: str) -> str:
    """A command that starts a step within an allocation and does not wait for it.

    It starts it once, however often it is run.

    :param spool: the folder
    :param key: the job's own
    :param slurm_job: the allocation's
    :param options: of ``srun``, for a shell
    :param body: of :func:`step`
    :returns: a shell command
    """
    return _SRUN.format(
        file=shlex.quote(path(spool, key, "")),
        end=f"END-STEP-{key}",
        **{"key": key, "slurm_job": slurm_job, "options": options, "body": body},
    )


def holder(
    spool: str,
    key: str,
    lines: Iterable[str],
    orphan_seconds: float,
) -> str:
    """A batch job that only holds its nodes, as long as somebody wants them.

    :param spool: the folder
    :param key: the allocation's
    :param lines: the directives for ``sbatch``
    :param orphan_seconds: how old the driver's last sign of life may get
    :returns: the script for ``sbatch``
    """
    hold = _HOLD.format(
        pause=PAUSE_SECONDS,
        orphan=int(orphan_seconds),
        gone=GONE_SECONDS,
    )
    return "\n".join([*_head(spool, key, lines), _ONCE, hold])


def path(spool: str, key: str, kind: str) -> str:
    """A file of a job in the spool."""
    return posixpath.join(spool, f"{key}.{kind}")


def _head(spool: str, key: str, lines: Iterable[str]) -> list[str]:
    return ["#!/bin/sh", *lines, f"d={shlex.quote(spool)} k={key}", _MARK]


def _run(key: str, body: str) -> str:
    return _RUN.format(end=f"END-{key}", body=body, interpreter=interpreter(body))
