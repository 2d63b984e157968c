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

Where the spool cannot be written, as on a full disk, a script ends with 74 (EX_IOERR of
sysexits.h) and does nothing.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from sf_quantum.connectors.slurm.options import directives, interpreter

#: what a Slurm command or job around this shell has set, and would have ours mistake
CLEAR = """\
for v in $(env | sed -n 's/^\\(S\\(LURM\\|RUN\\|ALLOC\\)_[A-Za-z0-9_]*\\)=.*/\\1/p'); do
  [ $v = SLURM_CONF ] || unset $v
done"""
# Bash and dash both start a command in the background with its input from /dev/null and
# deaf to SIGINT and SIGQUIT unless told otherwise (coreutils 8.31 can); it runs there so
# that signals reach it while the shell waits.
_RUN = """\
rm -f "$d/$k.mark"
began=$(date +%s.%N)
cat >"$d/$k.sh" <<'{end}' || exit 74
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
  echo "$k $SLURM_JOB_ID $1 $began $2 ${size:-0}" >"$d/$k.tmp" &&
    mv "$d/$k.tmp" "$d/$k.mark" && rm -f "$d/$k.began"
}"""
# sbatch may have reached Slurm although it said no, so the same job may come twice
_ONCE = """\
(set -C; echo "$SLURM_JOB_ID" >"$d/$k.lock") 2>/dev/null
# the other may be about to write it
[ -s "$d/$k.lock" ] || sleep 1
case $(cat "$d/$k.lock") in "$SLURM_JOB_ID") ;; '') exit 74 ;; *) exit 0 ;; esac"""
_HOLD = """\
step=$SLURM_STEP_ID
# got by salloc it has no batch job: this is a step
if [ -n "$step" ]; then
  # an earlier one may have outlived its `srun`: its place is taken when it ends
  until first=$(squeue --steps --noheader --jobs="$SLURM_JOB_ID" --format='%i %j' |
    sed -n "s/^$SLURM_JOB_ID\\.\\([0-9]*\\) $k-hold\\$/\\1/p" | sort -n | head -n 1)
    [ -n "$first" ] || exit 75
    [ "$first" = "$step" ]
  do sleep {pause}; done
{as_batch}
fi
if [ ! -e "$d/$k.up" ]; then
  # QRMI's SPANK plugin gives an allocation its leases, with a prefix for each QPU
  q=
  for n in $(echo "${{QRMI_JOB_QPU_RESOURCES-$SLURM_JOB_QPU_RESOURCES}}" | tr , ' '); do
    q="$q|$n"_
  done
  (umask 077; export -p | grep -E "^export (SLURM_|QRMI_$q)" >"$d/$k.env") || exit 74
  began=$(date +%s.%N)
  mark up - && : >"$d/$k.up" || exit 74
fi
while :; do
  # Slurm may end this before the shell: that is no reason to end the allocation
  sleep {pause} || exit
  # by the clock of the file system, as the others
  now=$(: >"$d/$k.now"; stat -c %Y "$d/$k.now")
  # a file that has been opened is not told of from NFS's cache
  cat "$d/alive" "$d/gone" >/dev/null 2>&1
  alive=$(stat -c %Y "$d/alive" 2>/dev/null) || break
  [ $((now - alive)) -lt {orphan} ] || break
  gone=$(stat -c %Y "$d/gone" 2>/dev/null) || continue
  [ $((now - gone)) -lt {gone} ] || break
done
# a step that ends leaves the allocation as it is
n=0
until [ -z "$step" ] || scancel "$SLURM_JOB_ID" || [ $n -ge {tries} ]; do
  n=$((n + 1)); sleep {pause}
done"""
# a step is told of its one task; here the variables become those of a batch job on one node
_AS_BATCH = """\
  for v in $(env | sed -n 's/^\\(S\\(RUN\\|LURM\\)_[A-Z0-9_]*\\)=.*/\\1/p'); do
    case ${v#SLURM_} in
      STEP*|NTASKS|NPROCS|TASKS*|SRUN*|LAUNCH*|DISTRIBUTION|UMASK|CPU_BIND*|MEM_BIND*|\
JOB_CPUS_PER_NODE_PACK*) unset "$v"
    esac
  done
  job=$(scontrol show job "$SLURM_JOB_ID")
  SLURM_JOB_NAME=$(echo "$job" | sed -n 's/^JobId=[0-9]* JobName=//p')
  cpus=$(echo "$job" | sed -n 's/^ *NumNodes=.* NumCPUs=\\([0-9]*\\) .*/\\1/p')
  export SLURM_JOB_NAME SLURM_JOB_CPUS_PER_NODE="$cpus" SLURM_TASKS_PER_NODE="$cpus"
  export SLURM_JOB_NODELIST="$SLURM_NODELIST" SLURM_NNODES=1 SLURM_JOB_NUM_NODES=1
  SLURM_CLUSTER_NAME=$(scontrol show config | sed -n 's/^ClusterName *= //p')
  export SLURM_CLUSTER_NAME
  # in MB, which Slurm shows as 1500M or 1.50G
  eval "$(echo "$job" |
    sed -n 's/.* MinMemory\\([A-Za-z]*\\)=\\([0-9.]*\\)\\([MGT]\\) .*/\\1 \\2 \\3/p' |
    awk '{ print "export SLURM_MEM_PER_" toupper($1) "=" $2 * 1024 ^ (index("MGT", $3) - 1) }'
  )"\
"""
# what `srun` sets describes the one task, not the allocation that the script has
_STEP = """\
{clear}
. "$d/{holder}.env"
exec {streams}
date +%s.%N >"$d/$k.began" || exit 74"""
# the variables of a component are there under names of their own, and `srun` has to be told
# which it is for: no variable does that
_COMPONENT = """\
eval "$(export -p | sed -n 's/_HET_GROUP_{group}=/=/p')"
export SLURM_JOB_ID="$SLURM_JOB_ID_HET_GROUP_0" SLURM_NNODES="$SLURM_JOB_NUM_NODES"
export SLURM_NODELIST="$SLURM_JOB_NODELIST" PATH="$d/srun{group}:$PATH"
mkdir -p "$d/srun{group}"
cat >"$d/$k.tmp" <<'END-SRUN' || exit 74
#!/bin/sh
PATH=$(echo "$PATH" | sed "s|${{0%/*}}:||") exec srun --het-group={group} "$@"
END-SRUN
chmod +x "$d/$k.tmp" && mv "$d/$k.tmp" "$d/srun{group}/srun" || exit 74"""

# a script that has left its mark removes what else tells that it began
_SRUN = """\
f={file}
(set -C; : >"$f"tried) 2>/dev/null || exit 0
cat >"$f"step <<'{end}' || exit 74
{body}
{end}
echo 0 >"$f"began || exit 74
{clear}
{{
  srun --quiet {options} /bin/sh "$f"step >"$f"srun 2>&1; code=$?
  if began=$(cat "$f"began 2>/dev/null); then
    # the disk may be full for a while
    until echo "{key} {slurm_job} $code ${{began:-0}} - 0" >"$f"gone; do
      [ -e "$f"tried ] && sleep 1 || exit
    done
    ln "$f"gone "$f"mark
  fi
  rm -f "$f"step "$f"began "$f"gone
}} </dev/null >/dev/null 2>&1 &"""

_TIME = r"\d+(?:\.\d+)?"
_LINE = re.compile(rf"([\w-]+) +(\d+) +(up|\d+) +({_TIME}) +(-|{_TIME}) +(\d+)")

#: an allocation looks so often whether its driver lives
PAUSE_SECONDS = 5
#: how long an allocation outlives its driver at most
GONE_SECONDS = 55
#: how often what holds an allocation tries to end it, or to begin
TRIES = 60


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
    :returns: the marks; what is none is left out
    """
    found = []
    for line in filter(None, map(_LINE.fullmatch, text.splitlines())):
        key, job, code, started, ended, size = line.groups()
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
    lines = [
        *_head(spool, key, []),
        _STEP.format(holder=holder, streams=streams, clear=CLEAR),
    ]
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
        clear=CLEAR,
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
        tries=TRIES,
        as_batch=_AS_BATCH,
    )
    return "\n".join([*_head(spool, key, lines), _ONCE, hold])


def path(spool: str, key: str, kind: str) -> str:
    """A file of a job in the spool."""
    return posixpath.join(spool, f"{key}.{kind}")


def _head(spool: str, key: str, lines: Iterable[str]) -> list[str]:
    return ["#!/bin/sh", *lines, f"d={shlex.quote(spool)} k={key}", _MARK]


def _run(key: str, body: str) -> str:
    return _RUN.format(end=f"END-{key}", body=body, interpreter=interpreter(body))
