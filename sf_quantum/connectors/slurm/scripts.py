"""The shell scripts that run on the cluster, and the marks that they leave.

Their files are in the *spool*, a folder of mode 0700 next to the jobs' work directories, on
the file system that nodes and login node share. When a script ends, it leaves a *mark* in
the spool, one line that is written atomically::

    KEY SLURM_JOB;CLUSTER EXIT_CODE STARTED ENDED OUTPUT_BYTES

The script of an allocation leaves a mark when the nodes are granted::

    KEY SLURM_JOB;CLUSTER up STARTED - 0

If the script of a step within an allocation could not leave a mark, the shell around ``srun``
on the login node does so, with the start time 0 if the script never began::

    KEY SLURM_JOB EXIT_CODE STARTED - 0

In the functions below, ``spool`` is that folder and ``key`` the name of the job's files in it.
If the spool cannot be written, for example because the disk is full, a script ends with exit
code 74 (EX_IOERR of sysexits.h) without running the command.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from sf_quantum.slurm import ids

# Variables that users set for their own calls of Slurm's commands would change the answers:
# defaults of options (SQUEUE_PARTITION hides jobs), formats, and other clusters.
PLAIN = """\
plain() {
  (unset $(env | sed -n 's/^\\(S\\(QUEUE\\|CANCEL\\|CONTROL\\|ACCT\\)_[A-Za-z0-9_]*\\)=.*/\\1/p')
  unset SLURM_CLUSTERS SLURM_TIME_FORMAT; exec "$@")
}"""
#: an enclosing Slurm job or command sets variables that would affect the commands run here
CLEAR = """\
for v in $(env | sed -n 's/^\\(S\\(LURM\\|RUN\\|ALLOC\\)_[A-Za-z0-9_]*\\)=.*/\\1/p'); do
  [ $v = SLURM_CONF ] || unset $v
done"""
# The command runs in the background so that signals reach it while the shell waits. Bash and
# dash then redirect its input from /dev/null and ignore SIGINT and SIGQUIT; `env` restores the
# signals (coreutils 8.31 or later).
_RUN = """\
for f in "$d/$k.mark" "$d/$k.late"; do [ ! -e "$f" ] || rm -f "$f"; done
hears="env --default-signal=INT,QUIT"
began=$($hears date +%s.%N 2>/dev/null) || {{ hears=; began=$(date +%s.%N); }}
printf '%s\\n' {body} >"$d/$k.sh" || exit 74
ended=
trap 'ended=1; kill -TERM $pid 2>/dev/null' TERM
for s in INT QUIT USR1 USR2 HUP CONT; do trap "kill -$s \\$pid 2>/dev/null" $s; done
exec 3<&0
$hears {interpreter} "$d/$k.sh" <&3 3<&- &
pid=$! watches=
# the signal may have come before the shell knew whom to pass it to
[ -z "$ended" ] || kill -TERM $pid 2>/dev/null
{watches}wait $pid; code=$?
while kill -0 $pid 2>/dev/null; do wait $pid; code=$?; done
# a signal ends `wait`, and the command may have ended just then
[ -z "$ended" ] || {{ wait $pid; last=$?; [ $last -eq 127 ] || code=$last; }}
[ -z "$watches" ] || kill $watches 2>/dev/null
[ ! -e "$d/$k.late" ] || {{ code={late}; rm -f "$d/$k.late"; }}
# Slurm ends the command and then this shell; no mark is left, as Slurm reports the end itself
[ $code -ne 0 ] || sleep 0.02
if [ -n "$ended" ]; then rm -f "$d/$k.sh" "$d/$k.now"; else
  # a signal to all processes would end `date` or `wc`, and leave a mark without their answer
  trap '' TERM INT QUIT USR1 USR2 HUP
  mark $code $(date +%s.%N)
fi
[ $code -ne 143 ] || {{ trap - TERM; kill -TERM $$; }}
exit $code"""
# Slurm's own limits are minutes. Signals for the command come to all processes of a step.
_LIMIT = """
(
  trap 'kill $s; exit' TERM
  trap '' USR1 USR2 HUP
  sleep {seconds} & s=$!; wait $s
  : >"$d/$k.late"
  end
) </dev/null >/dev/null 2>&1 3<&- &
watches="$watches $!"
"""
# Ends a job that is not cancelled otherwise if its driver ends.
_ORPHAN = """\
(
  trap 'kill $s; exit' TERM
  trap '' USR1 USR2 HUP
  while sleep {pause} & s=$!; wait $s; driven; do :; done
  end
) </dev/null >/dev/null 2>&1 3<&- &
watches="$watches $!"
"""
_END = """\
tree() {{ for c in $(cat /proc/$1/task/*/children 2>/dev/null); do tree $c; done; echo $1; }}
end() {{
  all=$(tree $pid)
  kill -TERM $all
  sleep {grace} & s=$!; wait $s
  kill -KILL $all
}}
"""
# variables that sbatch passes on, but slurmrestd does not
_AT_HOME = """\
export USER="${USER:-$(id -un)}"
export LOGNAME="${LOGNAME:-$USER}" HOME="${HOME:-$(eval echo "~$USER")}\""""
_MARK = """\
mark() {
  size=0
  [ ! -s "$d/$k.out" ] || size=$(wc -c <"$d/$k.out")
  echo "$k $SLURM_JOB_ID;$SLURM_CLUSTER_NAME $1 $began $2 $size" >"$d/$k.tmp" &&
    mv "$d/$k.tmp" "$d/$k.mark" && { [ ! -e "$d/$k.began" ] || rm -f "$d/$k.began"; }
}"""
# a failed sbatch may still have reached Slurm, so the same job may be in the queue twice
_ONCE = """\
set -C; { echo "$me" >"$d/$k.lock"; } 2>/dev/null; set +C
# the other job may be about to write its id
[ -s "$d/$k.lock" ] || sleep 1
owner=; read -r owner <"$d/$k.lock"
case $owner in "$me") ;; '') exit 74 ;; *) exit 0 ;; esac"""
# checks whether the driver is alive
_DRIVEN = """\
driven() {{
  # the clock of the file system, which the times of the other files follow
  now=$(: >"$d/$k.now"; stat -c %Y "$d/$k.now")
  # opening a file makes NFS revalidate its cache
  cat "$d/alive" "$d/gone" >/dev/null 2>&1
  alive=$(stat -c %Y "$d/alive" 2>/dev/null) || return
  [ $((now - alive)) -lt {orphan} ] || return
  gone=$(stat -c %Y "$d/gone" 2>/dev/null) || return 0
  [ $((now - gone)) -lt {gone} ]
}}"""
_HOLD = """\
{plain}
# Slurm 26.05 gives a batch script the number -5
step=${{SLURM_STEP_ID##-*}}
# an allocation made by salloc has no batch script: this script is a step
if [ -n "$step" ]; then
  # an earlier step may have outlived its `srun`: wait until it has ended
  until first=$(plain squeue --steps --noheader --jobs="$SLURM_JOB_ID" --format='%i %j' |
    sed -n "s/^$SLURM_JOB_ID\\.\\([0-9]*\\) $k-hold\\$/\\1/p" | sort -n | head -n 1)
    [ -n "$first" ] || exit 75
    [ "$first" = "$step" ]
  do sleep {pause}; done
{as_batch}
fi
if [ ! -e "$d/$k.up" ]; then
  # QRMI's SPANK plugin exports the leases in variables with a prefix for each QPU
  q=
  for n in $(echo "${{QRMI_JOB_QPU_RESOURCES-$SLURM_JOB_QPU_RESOURCES}}" | tr , ' '); do
    q="$q|$n"_
  done
  (unset SLURM_STEP_ID SLURM_STEPID; umask 077
    export -p | grep -E "^export (SLURM_|QRMI_$q)" >"$d/$k.env") || exit 74
  began=$(date +%s.%N)
  mark up - && : >"$d/$k.up" || exit 74
fi
# a failed sleep means that Slurm is ending this step: keep the allocation
while sleep {pause} || exit; driven; do :; done
# the end of a step does not end the allocation
n=0
until [ -z "$step" ] || plain scancel "$SLURM_JOB_ID" || [ $n -ge {tries} ]; do
  n=$((n + 1)); sleep {pause}
done"""
# turns the variables of a step, which describe its one task, into those of a batch job
_AS_BATCH = """\
  for v in $(env | sed -n 's/^\\(S\\(RUN\\|LURM\\)_[A-Z0-9_]*\\)=.*/\\1/p'); do
    case ${v#SLURM_} in
      STEP*|NTASKS|NPROCS|TASKS*|SRUN*|LAUNCH*|DISTRIBUTION|UMASK|CPU_BIND*|MEM_BIND*|\
JOB_CPUS_PER_NODE_PACK*|JOB_GROUP) unset "$v"
    esac
  done
  job=$(plain scontrol show job "$SLURM_JOB_ID")
  SLURM_JOB_NAME=$(echo "$job" | sed -n 's/^JobId=[0-9]* JobName=//p')
  cpus=$(echo "$job" | sed -n 's/^ *NumNodes=.* NumCPUs=\\([0-9]*\\) .*/\\1/p')
  export SLURM_JOB_NAME SLURM_JOB_CPUS_PER_NODE="$cpus" SLURM_TASKS_PER_NODE="$cpus"
  export SLURM_JOB_NODELIST="$SLURM_NODELIST" SLURM_NNODES=1 SLURM_JOB_NUM_NODES=1
  SLURM_CLUSTER_NAME=$(plain scontrol show config | sed -n 's/^ClusterName *= //p')
  export SLURM_CLUSTER_NAME
  # the variables are in MB; Slurm prints 1500M or 1.50G
  eval "$(echo "$job" |
    sed -n 's/.* MinMemory\\([A-Za-z]*\\)=\\([0-9.]*\\)\\([MGT]\\) .*/\\1 \\2 \\3/p' |
    awk '{ print "export SLURM_MEM_PER_" toupper($1) "=" $2 * 1024 ^ (index("MGT", $3) - 1) }'
  )"\
"""
# the variables that `srun` sets describe the one task, not the allocation
_STEP = """\
{clear}
. "$d/{holder}.env"
exec {streams}
date +%s.%N >"$d/$k.began" || exit 74"""
# the variables of a component have a suffix, and `srun` selects the component only with an
# option, not with a variable
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

# a script that leaves its mark removes the file `began`
_SRUN = """\
f={file}
(set -C; : >"$f"tried) 2>/dev/null || exit 0
cat >"$f"step <<'END-STEP-{key}' || exit 74
{body}
END-STEP-{key}
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

_TIMESTAMP = r"\d+(?:\.\d+)?"
_MARK_LINE = re.compile(
    rf"([\w-]+) +({ids.PATTERN}) +(up|\d+) +({_TIMESTAMP}) +(-|{_TIMESTAMP}) +(\d+)"
)

# seconds between two checks of an allocation whether its driver is alive
PAUSE_SECONDS = 5
#: the longest time for which an allocation outlives its driver
GONE_SECONDS = 55
#: the exit code of a command whose time limit has passed, as of timeout(1)
LATE = 124
# Time between SIGTERM and SIGKILL to such a command.
LATE_SECONDS = 5
#: the exit code (EX_TEMPFAIL of sysexits.h) of a command whose result is unknown
UNKNOWN = 75
# attempts of the script of an allocation to start, or to end the allocation
TRIES = 60


@dataclass(frozen=True)
class JobMark:
    """The mark of a script: see the module. Times are epoch seconds.

    :param exit_code: None for an allocation whose nodes have been granted
    :param ended: None for an allocation, or if the script left no mark
    """

    key: str
    slurm_job: str
    exit_code: int | None
    started: float
    ended: float | None
    output_bytes: int


def marks(text: str) -> list[JobMark]:
    """Read marks, one per line; other lines are ignored."""
    lines = filter(None, map(_MARK_LINE.fullmatch, text.splitlines()))
    return [
        JobMark(
            key=key,
            slurm_job=job,
            exit_code=None if code == "up" else int(code),
            started=float(started),
            ended=None if ended == "-" else float(ended),
            output_bytes=int(size),
        )
        for key, job, code, started, ended, size in (line.groups() for line in lines)
    ]


def job(
    spool: str,
    key: str,
    body: str,
    seconds: int | None = None,
    *,
    orphan_seconds: float | None = None,
) -> str:
    """The batch script that runs a job script and leaves a mark.

    :param seconds: the time limit of the job script, whose exit code is then :data:`LATE`
    :param orphan_seconds: the maximum age of the driver's last sign of life, if the job has
        to end itself
    """
    return _job(spool, key, "$SLURM_JOB_ID", body, seconds, orphan_seconds)


def task(
    spool: str,
    key: str,
    body: str,
    seconds: int | None = None,
    *,
    orphan_seconds: float | None = None,
) -> str:
    """The batch script for tasks of an array, whose files have the task's number in the name.

    See :func:`job`.
    """
    task_key = f"{key}-$SLURM_ARRAY_TASK_ID"
    return _job(spool, task_key, "$SLURM_ARRAY_JOB_ID", body, seconds, orphan_seconds)


def _job(
    spool: str,
    key: str,
    me: str,
    body: str,
    seconds: int | None,
    orphan_seconds: float | None,
) -> str:
    lines = [
        *_head(spool, key, directives(body)),
        f'me="{me};$SLURM_CLUSTER_NAME"',
        _ONCE,
    ]
    if orphan_seconds is not None:
        lines += [_driven(orphan_seconds), _AT_HOME, "driven || exit 74"]
    orphan = orphan_seconds is not None
    return "\n".join([*lines, _run(key, body, seconds, orphan=orphan)])


def step(
    spool: str,
    key: str,
    body: str,
    *,
    streams: str,
    holder: str,
    group: int | None,
    seconds: int | None = None,
    latest: float | None = None,
) -> str:
    """A shell script that runs a job script within an allocation, as if in a batch job.

    :param holder: the key of the allocation
    :param group: the component of a heterogeneous allocation; None if it has only one
    :param seconds: see :func:`job`
    :param latest: epoch seconds after which the job script is not begun, and the script exits
        with :data:`UNKNOWN`
    """
    lines = _head(spool, key, [])
    if latest is not None:
        lines.append(f"[ $(date +%s) -le {latest:.0f} ] || exit {UNKNOWN}")
    lines.append(_STEP.format(holder=holder, streams=streams, clear=CLEAR))
    if group:
        lines.append(_COMPONENT.format(group=group))
    return "\n".join([*lines, _run(key, body, seconds)])


def srun(spool: str, key: str, *, slurm_job: str, options: str, body: str) -> str:
    """An idempotent shell command that starts a step in the background.

    :param options: options of ``srun``, quoted for the shell
    :param body: the script from :func:`step`
    """
    return _SRUN.format(
        file=shlex.quote(path(spool, key, "")),
        key=key,
        slurm_job=slurm_job,
        options=options,
        body=body,
        clear=CLEAR,
    )


def holder(spool: str, key: str, lines: Iterable[str], orphan_seconds: float) -> str:
    """The batch script of an allocation, which holds its nodes while its driver is alive.

    :param orphan_seconds: the maximum age of the driver's last sign of life
    """
    hold = _HOLD.format(
        plain=PLAIN,
        pause=PAUSE_SECONDS,
        tries=TRIES,
        as_batch=_AS_BATCH,
    )
    head = [*_head(spool, key, lines), 'me="$SLURM_JOB_ID;$SLURM_CLUSTER_NAME"', _ONCE]
    return "\n".join([*head, _driven(orphan_seconds), hold])


def path(spool: str, key: str, kind: str) -> str:
    return posixpath.join(spool, f"{key}.{kind}")


def _head(spool: str, key: str, lines: Iterable[str]) -> list[str]:
    return ["#!/bin/sh", *lines, f"d={shlex.quote(spool)} k={key}", _MARK]


def _driven(orphan_seconds: float) -> str:
    return _DRIVEN.format(orphan=int(orphan_seconds), gone=GONE_SECONDS)


def _run(
    key: str, body: str, seconds: int | None = None, *, orphan: bool = False
) -> str:
    first = body.split("\n", 1)[0]
    interpreter = first[2:].strip() if first.startswith("#!") else ""
    watches = "" if seconds is None else _LIMIT.format(seconds=seconds)
    if orphan:
        watches += _ORPHAN.format(pause=PAUSE_SECONDS)
    if watches:
        watches = _END.format(grace=LATE_SECONDS) + watches
    return _RUN.format(
        body=shlex.quote(body),
        interpreter=interpreter or "/bin/sh",
        watches=watches,
        late=LATE,
    )


def directives(script: str) -> list[str]:
    """Return the ``#SBATCH`` lines of a job script, before its first command.

    ``sbatch`` skips blank lines and comments, even if indented; ``#SBATCH`` itself must begin
    a line (Slurm, ``_opt_batch_script`` in ``src/sbatch/opt.c``).
    """
    head = takewhile(lambda line: line.lstrip()[:1] in ("", "#"), script.splitlines())
    return [line for line in head if line.startswith("#SBATCH")]


def has_option(script: str, *names: str) -> bool:
    words = (word for line in directives(script) for word in line.split()[1:])
    return any(word.startswith(names) for word in words)
