"""The shell scripts that run on the cluster, and the marks that they leave.

Their files are in the *spool*, a folder of mode 0700 beside the jobs' work directories, on
the file system that nodes and login node share. When a script ends, it leaves a *mark* in
the spool, one line that is written atomically::

    KEY SLURM_JOB EXIT_CODE STARTED ENDED OUTPUT_BYTES

The script of an allocation leaves one when the nodes are granted::

    KEY SLURM_JOB up STARTED - 0

If the script of a step within an allocation could not leave a mark, the ``srun`` on the login
node leaves one, with the start time 0 if the script never began::

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

# users set variables for their own calls of Slurm's commands, which would change the answers:
# defaults of options (SQUEUE_PARTITION hides jobs), formats, and other clusters
PLAIN = """\
plain() {
  (unset $(env | sed -n 's/^\\(S\\(QUEUE\\|CANCEL\\|CONTROL\\|ACCT\\)_[A-Za-z0-9_]*\\)=.*/\\1/p')
  unset SLURM_CLUSTERS SLURM_TIME_FORMAT; exec "$@")
}"""
# an enclosing Slurm job or command sets variables that would affect the commands run here
_CLEAR = """\
for v in $(env | sed -n 's/^\\(S\\(LURM\\|RUN\\|ALLOC\\)_[A-Za-z0-9_]*\\)=.*/\\1/p'); do
  [ $v = SLURM_CONF ] || unset $v
done"""
# The command runs in the background so that signals reach it while the shell waits. Bash and
# dash then redirect its input from /dev/null and ignore SIGINT and SIGQUIT; `env` restores the
# signals (coreutils 8.31 or later).
_RUN = """\
rm -f "$d/$k.mark"
began=$(date +%s.%N)
cat >"$d/$k.sh" <<'END-{key}' || exit 74
{body}
END-{key}
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
# Slurm ends the command and then this shell; no mark is left, as Slurm reports the end itself
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
# a failed sbatch may still have reached Slurm, so the same job may be in the queue twice
_ONCE = """\
(set -C; echo "$SLURM_JOB_ID" >"$d/$k.lock") 2>/dev/null
# the other job may be about to write its id
[ -s "$d/$k.lock" ] || sleep 1
case $(cat "$d/$k.lock") in "$SLURM_JOB_ID") ;; '') exit 74 ;; *) exit 0 ;; esac"""
_HOLD = """\
{plain}
step=$SLURM_STEP_ID
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
  (umask 077; export -p | grep -E "^export (SLURM_|QRMI_$q)" >"$d/$k.env") || exit 74
  began=$(date +%s.%N)
  mark up - && : >"$d/$k.up" || exit 74
fi
while :; do
  # a failed sleep means that Slurm is ending this step: keep the allocation
  sleep {pause} || exit
  # by the clock of the file system, like the times of the other files
  now=$(: >"$d/$k.now"; stat -c %Y "$d/$k.now")
  # opening a file makes NFS revalidate its cache
  cat "$d/alive" "$d/gone" >/dev/null 2>&1
  alive=$(stat -c %Y "$d/alive" 2>/dev/null) || break
  [ $((now - alive)) -lt {orphan} ] || break
  gone=$(stat -c %Y "$d/gone" 2>/dev/null) || continue
  [ $((now - gone)) -lt {gone} ] || break
done
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
JOB_CPUS_PER_NODE_PACK*) unset "$v"
    esac
  done
  job=$(plain scontrol show job "$SLURM_JOB_ID")
  SLURM_JOB_NAME=$(echo "$job" | sed -n 's/^JobId=[0-9]* JobName=//p')
  cpus=$(echo "$job" | sed -n 's/^ *NumNodes=.* NumCPUs=\\([0-9]*\\) .*/\\1/p')
  export SLURM_JOB_NAME SLURM_JOB_CPUS_PER_NODE="$cpus" SLURM_TASKS_PER_NODE="$cpus"
  export SLURM_JOB_NODELIST="$SLURM_NODELIST" SLURM_NNODES=1 SLURM_JOB_NUM_NODES=1
  SLURM_CLUSTER_NAME=$(plain scontrol show config | sed -n 's/^ClusterName *= //p')
  export SLURM_CLUSTER_NAME
  # in MB; Slurm prints 1500M or 1.50G
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
# the variables of a component have a suffix, and `srun` selects the component only by an
# option, not by a variable
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

_SUBMISSION = """\
{plain}
f={file}
id=$(cat "$f"id "$f"lock 2>/dev/null | head -n 1)
if [ -z "$id" ] && [ -e "$f"tried ]; then
  jobs=$(plain squeue --noheader --states=all --user="$(id -un)" --format='%F %T %k') ||
    exit {unknown}
  id=$(echo "$jobs" | sed -n 's/^\\([0-9]*\\) [A-Z_]* {comment}\\( .*\\)*$/\\1/p' | head -n 1)
fi{at_once}
if [ -z "$id" ]; then
  : >"$f"tried
  # with these, it would wait for the job's end, or submit elsewhere or several times
  id=$(env -u SBATCH_WAIT -u SBATCH_CLUSTERS -u SLURM_CLUSTERS -u SBATCH_ARRAY_INX \\
    sbatch --parsable --comment={comment}{note} {options} <<'END-SBATCH-{key}'
{body}
END-SBATCH-{key}
) || exit
fi
echo "$id" | tee "$f"id"""
# The comment differs from that of `sbatch`: an attempt without nodes leaves a failed job in the
# queue and in the accounting. It must not be taken for the submitted one, and is not made
# unless Slurm would start the job now. `sbatch` is used where environment variables set its
# options.
_AT_ONCE = r"""
there() {{
  case $(plain squeue --noheader --states=CF,R,S,ST --jobs="$id" 2>&1) in
    ''|*"Invalid job id"*) return 1
  esac
}}
now() {{
  at=$({clear}
    SLURM_TIME_FORMAT=%s sbatch --test-only {options} --nodes=1 --wrap=true 2>&1 |
    sed -n 's/.* to start at \([0-9][0-9]*\) .*/\1/p')
  [ -n "$at" ] && [ $at -le $(($(date +%s) + 1)) ] || return 1
  # nor does it pass by the jobs that wait for nodes
  ! plain squeue --noheader --states=PENDING {partition} --format=%r |
    grep -Eqx 'None|Priority|Resources'
}}
# nobody tells Slurm that the steps of an allocation without a batch script have been killed
# with their node, if its daemon is back soon; by the clock of the file system
silent() {{
  cat "$f"now >/dev/null 2>&1
  seen=$(stat -c %Y "$f"now 2>/dev/null || stat -c %Y "$f"up 2>/dev/null) &&
    alive=$(stat -c %Y "${{f%/*}}/alive" 2>/dev/null) && [ $((alive - seen)) -gt {silent} ]
}}
hold() {{
  # a running step may be reading the old file
  cat >"$f"new <<'END-SALLOC-{key}' && mv "$f"new "$f"hold && echo "$id" >"$f"given || {{
{body}
END-SALLOC-{key}
    plain scancel "$id"; exit 74
  }}
  (
    {clear}
    host=$(uname -n) n=0
    export SLURM_SUBMIT_DIR="$PWD" SLURM_SUBMIT_HOST="${{host%%.*}}"
    while [ -e "$f"hold ]; do
      if silent && plain scancel "$id"; then break; fi
      sleep {pause}
    done & watch=$!
    # the end of this `srun` does not end the allocation
    while srun --jobid="$id" --quiet --overlap --nodes=1 --ntasks=1 --job-name={key}-hold \
      /bin/sh "$f"hold; code=$?; there
    do
      case $code in 0|74) break; esac
      [ -e "$f"up ] || n=$((n + 1))
      [ -e "$f"hold ] && [ $n -lt {tries} ] || break
      sleep {pause}
    done
    kill $watch 2>/dev/null
    n=0
    while there && ! plain scancel "$id" && [ $n -lt {tries} ]; do
      n=$((n + 1)); sleep {pause}
    done
  ) </dev/null >/dev/null 2>&1 &
}}
if [ -z "$id" ] && [ -e "$f"tried ]; then
  id=$(echo "$jobs" |
    sed -n 's/^\([0-9]*\) \(RUNNING\|CONFIGURING\) {comment}-a\( .*\)*$/\1/p' | head -n 1)
  [ -z "$id" ] || hold
elif [ -z "$id" ] && ! env | grep -Eq '^(SBATCH_|SLURM_(CLUSTERS|HINT)=)' && now; then
  : >"$f"tried
  said=$({clear}
    salloc --no-shell --immediate=1 --comment={comment}-a{note} {options} --nodes=1 2>&1)
  id=$(echo "$said" | sed -n 's/.*Granted job allocation //p')
  case "$id $said" in
    # there may be an allocation: look for it, before another is requested
    " "*[Tt]"imed out"*|" "*"Zero Bytes"*|" "*[Cc]"onnect"*) echo "$said"; exit {unknown}
  esac
  [ -z "$id" ] || hold
elif [ -n "$id" ] && [ "$id" = "$(cat "$f"given 2>/dev/null)" ] && [ ! -e "$f"up ]; then
  hold
fi"""

_TIMESTAMP = r"\d+(?:\.\d+)?"
_MARK_LINE = re.compile(
    rf"([\w-]+) +(\d+) +(up|\d+) +({_TIMESTAMP}) +(-|{_TIMESTAMP}) +(\d+)"
)

# seconds between two checks of an allocation whether its driver is alive
PAUSE_SECONDS = 5
#: without a sign of life of its script, an allocation is cancelled
SILENT_SECONDS = 120
#: the longest time for which an allocation outlives its driver
GONE_SECONDS = 55
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


def job(spool: str, key: str, body: str) -> str:
    """The batch script that runs a job script and leaves a mark."""
    return "\n".join([*_head(spool, key, directives(body)), _ONCE, _run(key, body)])


def step(
    spool: str, key: str, body: str, *, streams: str, holder: str, group: int | None
) -> str:
    """A shell script that runs a job script within an allocation, as if in a batch job.

    :param holder: the key of the allocation
    :param group: the component of a heterogeneous allocation; None if it has only one
    """
    lines = _head(spool, key, [])
    lines.append(_STEP.format(holder=holder, streams=streams, clear=_CLEAR))
    if group:
        lines.append(_COMPONENT.format(group=group))
    return "\n".join([*lines, _run(key, body)])


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
        clear=_CLEAR,
    )


def holder(spool: str, key: str, lines: Iterable[str], orphan_seconds: float) -> str:
    """The batch script of an allocation, which holds its nodes while its driver is alive.

    :param orphan_seconds: the maximum age of the driver's last sign of life
    """
    hold = _HOLD.format(
        plain=PLAIN,
        pause=PAUSE_SECONDS,
        orphan=int(orphan_seconds),
        gone=GONE_SECONDS,
        tries=TRIES,
        as_batch=_AS_BATCH,
    )
    return "\n".join([*_head(spool, key, lines), _ONCE, hold])


def submission(
    spool: str,
    key: str,
    body: str,
    *,
    comment: str,
    note: str = "",
    options: str,
    at_once: str | None,
) -> str:
    """An idempotent shell command that submits a job and prints its id.

    If the answer of ``sbatch`` is lost, the job is found again by its id in the spool, or by
    its unique comment in the queue before its script has begun.

    :param note: what follows in the comment, quoted for the shell
    :param options: options of ``sbatch``, quoted for the shell
    :param at_once: options of ``salloc``, which grants free nodes without waiting for the
        next cycle of Slurm's scheduler; the script then runs as a step
    """
    common = {"comment": comment, "note": note, "key": key, "body": body}
    fast = ""
    if at_once is not None:
        found = re.search(r'--partition="[^"]*"', at_once)
        fast = _AT_ONCE.format(
            options=at_once,
            partition=found[0] if found else "",
            clear=_CLEAR,
            pause=PAUSE_SECONDS,
            silent=SILENT_SECONDS,
            tries=TRIES,
            unknown=UNKNOWN,
            **common,
        )
    file = shlex.quote(path(spool, key, ""))
    return _SUBMISSION.format(
        plain=PLAIN,
        file=file,
        unknown=UNKNOWN,
        options=options,
        at_once=fast,
        **common,
    )


def path(spool: str, key: str, kind: str) -> str:
    return posixpath.join(spool, f"{key}.{kind}")


def _head(spool: str, key: str, lines: Iterable[str]) -> list[str]:
    return ["#!/bin/sh", *lines, f"d={shlex.quote(spool)} k={key}", _MARK]


def _run(key: str, body: str) -> str:
    first = body.split("\n", 1)[0]
    interpreter = first[2:].strip() if first.startswith("#!") else ""
    return _RUN.format(key=key, body=body, interpreter=interpreter or "/bin/sh")


def directives(script: str) -> list[str]:
    """The ``#SBATCH`` lines of a job script, before its first command (sbatch(1))."""
    head = takewhile(
        lambda line: not line.strip() or line.startswith("#"), script.splitlines()
    )
    return [line for line in head if line.startswith("#SBATCH")]


def has_option(script: str, *names: str) -> bool:
    words = (word for line in directives(script) for word in line.split()[1:])
    return any(word.startswith(names) for word in words)
