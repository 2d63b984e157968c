"""The shell scripts that run on the cluster, and the marks that they leave.

The scripts' files are in the *spool*, a folder of mode 0700 next to the jobs' work
directories, on the file system that nodes and login node share. When a script ends, it leaves
a *mark* in the spool, a line that is written atomically::

    KEY SLURM_JOB;CLUSTER EXIT_CODE STARTED ENDED OUTPUT_BYTES

The script of an allocation leaves a mark when the nodes are granted::

    KEY SLURM_JOB;CLUSTER up STARTED - 0

If the script of a step within an allocation cannot leave a mark, the shell around ``srun`` on
the login node writes the mark, with the start time 0 if the script never began::

    KEY SLURM_JOB EXIT_CODE STARTED - 0

In the functions below, ``spool`` is the spool's path, and ``key`` the name of the job's files
in the spool. If the spool cannot be written to, for example because the disk is full, a script
ends with exit code 74 (EX_IOERR of sysexits.h) without running the command.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from sf_quantum.slurm import ids

# A shell function that runs a command of Slurm without variables that the user may have set,
# and that would change the answer: defaults of options (SQUEUE_PARTITION hides jobs), formats,
# and other clusters.
PLAIN = """\
plain() {
  (unset $(env | sed -n 's/^\\(S\\(QUEUE\\|CANCEL\\|CONTROL\\|ACCT\\)_[A-Za-z0-9_]*\\)=.*/\\1/p')
  unset SLURM_CLUSTERS SLURM_TIME_FORMAT; exec "$@")
}"""
#: unsets variables of an enclosing Slurm job or command that would affect Slurm's commands
CLEAR = """\
for v in $(env | sed -n 's/^\\(S\\(LURM\\|RUN\\|ALLOC\\)_[A-Za-z0-9_]*\\)=.*/\\1/p'); do
  [ $v = SLURM_CONF ] || unset $v
done"""
# The command runs in the background, so that the shell can pass signals on while it waits.
# Bash and dash then redirect the command's input from /dev/null, and let it ignore SIGINT and
# SIGQUIT; `env` restores these signals (coreutils 8.31 or later).
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
# Ends the command at its time limit in seconds; Slurm's own limits are in minutes. The traps
# are needed since signals for the command are sent to all processes of a step.
_TIME_LIMIT = """
(
  trap 'kill $s; exit' TERM
  trap '' USR1 USR2 HUP
  sleep {seconds} & s=$!; wait $s
  : >"$d/$k.late"
  end
) </dev/null >/dev/null 2>&1 3<&- &
watches="$watches $!"
"""
# Ends a job whose driver has ended, if nothing else would cancel the job.
_END_WITH_DRIVER = """\
(
  trap 'kill $s; exit' TERM
  trap '' USR1 USR2 HUP
  while sleep {pause} & s=$!; wait $s; driven; do :; done
  end
) </dev/null >/dev/null 2>&1 3<&- &
watches="$watches $!"
"""
# shell functions that end the command with all its child processes
_END = """\
tree() {{ for c in $(cat /proc/$1/task/*/children 2>/dev/null); do tree $c; done; echo $1; }}
end() {{
  all=$(tree $pid)
  kill -TERM $all
  sleep {grace} & s=$!; wait $s
  kill -KILL $all
}}
"""
# sets variables that sbatch passes on to a job, but slurmrestd does not
_HOME_VARIABLES = """\
export USER="${USER:-$(id -un)}"
export LOGNAME="${LOGNAME:-$USER}" HOME="${HOME:-$(eval echo "~$USER")}\""""
# a shell function that writes the mark
_MARK = """\
mark() {
  size=0
  [ ! -s "$d/$k.out" ] || size=$(wc -c <"$d/$k.out")
  echo "$k $SLURM_JOB_ID;$SLURM_CLUSTER_NAME $1 $began $2 $size" >"$d/$k.tmp" &&
    mv "$d/$k.tmp" "$d/$k.mark" && { [ ! -e "$d/$k.began" ] || rm -f "$d/$k.began"; }
}"""
# Acquires the job's lock. An sbatch that failed may still have reached Slurm, so the same job
# may be in the queue twice.
_ACQUIRE_LOCK = """\
set -C; { echo "$me" >"$d/$k.lock"; } 2>/dev/null; set +C
# the other job may be about to write its id
[ -s "$d/$k.lock" ] || sleep 1
owner=; read -r owner <"$d/$k.lock"
case $owner in "$me") ;; '') exit 74 ;; *) exit 0 ;; esac"""
# a shell function that checks whether the driver is alive
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
# the script of an allocation, which runs while the driver is alive
_HOLD_NODES = """\
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
# Replaces the variables of a step, which describe the step's one task, with the variables of a
# batch job.
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
# Loads the variables of the allocation; the variables that `srun` sets describe only its task.
_STEP = """\
{clear}
. "$d/{holder}.env"
exec {streams}
date +%s.%N >"$d/$k.began" || exit 74"""
# Sets the variables of a component, which have a suffix, and adds the option that selects the
# component to `srun`, which has no variable for it.
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

# Starts a step. If the file `began` still exists afterwards, the step's script has left no
# mark.
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

# seconds between an allocation's checks whether its driver is alive
PAUSE_SECONDS = 5
#: longest time in seconds for which an allocation outlives its driver
GONE_SECONDS = 55
#: exit code of a command that was ended at its time limit, as in timeout(1)
LATE = 124
# seconds between SIGTERM and SIGKILL to such a command
LATE_SECONDS = 5
#: exit code (EX_TEMPFAIL of sysexits.h) for a command whose result is unknown
UNKNOWN = 75
# limit on attempts to start an allocation's script, and on its attempts to end the allocation
TRIES = 60


@dataclass(frozen=True)
class JobMark:
    """The mark of a script, see the module. Times are epoch seconds.

    :param exit_code: exit code; ``None`` for an allocation whose nodes have been granted
    :param started: start of the script; 0 if it never began
    :param ended: end of the script; ``None`` for an allocation, or if the script itself left
        no mark
    """

    key: str
    slurm_job: str
    exit_code: int | None
    started: float
    ended: float | None
    output_bytes: int


def marks(text: str) -> list[JobMark]:
    """Read marks, one per line; ignore other lines."""
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
    """Return the batch script that runs a job script and leaves a mark.

    :param body: the job script
    :param seconds: time limit of the job script; at the limit, the exit code is :data:`LATE`
    :param orphan_seconds: maximum age of the driver's last sign of life, if the job has to end
        itself when its driver has ended
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
    """Return the batch script for the tasks of an array, see :func:`job`.

    The names of a task's files contain the number of the task.
    """
    task_key = f"{key}-$SLURM_ARRAY_TASK_ID"
    return _job(spool, task_key, "$SLURM_ARRAY_JOB_ID", body, seconds, orphan_seconds)


def _job(
    spool: str,
    key: str,
    job_id: str,
    body: str,
    seconds: int | None,
    orphan_seconds: float | None,
) -> str:
    """Return the batch script of a job, or of each task of an array; see :func:`job`.

    :param job_id: variable of Slurm with the id that the script writes into its lock
    """
    lines = [
        *_head(spool, key, directives(body)),
        f'me="{job_id};$SLURM_CLUSTER_NAME"',
        _ACQUIRE_LOCK,
    ]
    if orphan_seconds is not None:
        lines += [_driven(orphan_seconds), _HOME_VARIABLES, "driven || exit 74"]
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
    """Return a shell script that runs a job script in an allocation, as if in a batch job.

    :param streams: redirections of the job script's streams, for the shell
    :param holder: key of the allocation
    :param group: component of a heterogeneous allocation; ``None`` for other allocations
    :param seconds: see :func:`job`
    :param latest: latest start of the job script in epoch seconds; later, the shell script
        exits with :data:`UNKNOWN`
    """
    lines = _head(spool, key, [])
    if latest is not None:
        lines.append(f"[ $(date +%s) -le {latest:.0f} ] || exit {UNKNOWN}")
    lines.append(_STEP.format(holder=holder, streams=streams, clear=CLEAR))
    if group:
        lines.append(_COMPONENT.format(group=group))
    return "\n".join([*lines, _run(key, body, seconds)])


def srun(spool: str, key: str, *, slurm_job: str, options: str, body: str) -> str:
    """Return an idempotent shell command that starts a step in the background.

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
    """Return the batch script of an allocation, which holds nodes while its driver is alive.

    :param lines: ``#SBATCH`` lines of the script
    :param orphan_seconds: maximum age of the driver's last sign of life
    """
    hold = _HOLD_NODES.format(
        plain=PLAIN,
        pause=PAUSE_SECONDS,
        tries=TRIES,
        as_batch=_AS_BATCH,
    )
    head = [
        *_head(spool, key, lines),
        'me="$SLURM_JOB_ID;$SLURM_CLUSTER_NAME"',
        _ACQUIRE_LOCK,
    ]
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
    """Return shell lines that run a job script within its limits."""
    first = body.split("\n", 1)[0]
    interpreter = first[2:].strip() if first.startswith("#!") else ""
    watches = "" if seconds is None else _TIME_LIMIT.format(seconds=seconds)
    if orphan:
        watches += _END_WITH_DRIVER.format(pause=PAUSE_SECONDS)
    if watches:
        watches = _END.format(grace=LATE_SECONDS) + watches
    return _RUN.format(
        body=shlex.quote(body),
        interpreter=interpreter or "/bin/sh",
        watches=watches,
        late=LATE,
    )


def directives(script: str) -> list[str]:
    """Return the ``#SBATCH`` lines of a job script that precede its first command.

    ``sbatch`` skips blank lines and comments, even if indented; ``#SBATCH`` itself must be at
    the beginning of a line (Slurm, ``_opt_batch_script`` in ``src/sbatch/opt.c``).
    """
    head = takewhile(lambda line: line.lstrip()[:1] in ("", "#"), script.splitlines())
    return [line for line in head if line.startswith("#SBATCH")]


def has_option(script: str, *names: str) -> bool:
    words = (word for line in directives(script) for word in line.split()[1:])
    return any(word.startswith(names) for word in words)
