"""How a job gets into Slurm's queue: once, however often that has to be tried."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from sf_quantum.connectors.slurm import options, script
from sf_quantum.connectors.slurm.options import Service
from sf_quantum.files import JSON

# what sbatch(1) says when the same submission may succeed a little later: slurm_errno.c
# and errno(3), for a controller that is down, starting, busy or full, and for MUNGE; and
# the limits on how many jobs may wait, which it names before it refuses a job
_PASSING = re.compile(
    "unable to contact slurm controller|socket timed out|zero bytes were transmitted|"
    "communication connection failure|connection (refused|reset|timed out)|"
    "resource temporarily unavailable|temporarily unable to accept|temporarily disabled|"
    "transport endpoint is not connected|no route to host|host is unreachable|broken pipe|"
    "unable to create job record, try again|standby mode|"
    "protocol authentication error|munge encode failed|"
    r"submitjobs?\w*limit",
    re.IGNORECASE,
)
#: the exit code (sysexits.h) for what could not be asked
UNKNOWN = 75
_LINE = re.compile(r"^(\d+)(?:;\S+)?$", re.MULTILINE)


def command(
    spool: str,
    comment: str,
    key: str,
    options: str,
    body: str,
    at_once: str | None = None,
) -> str:
    """A shell command that submits once, however often it is run.

    An answer that was lost on its way leaves the job's id in the spool, once its script
    has begun, or at least the key in its comment.

    :param spool: the folder
    :param comment: the job's own
    :param options: of ``sbatch``, for a shell
    :param body: the batch script
    :param at_once: of ``salloc``, which gives free nodes without waiting for the next turn
        of Slurm's scheduler; the script then runs there as a step. Where none are free the
        accounting keeps a job that failed and never had nodes
    :returns: the command, which prints the job's id
    """
    file = shlex.quote(script.path(spool, key, ""))
    return f"""\
f={file}
id=$(cat "$f"id "$f"lock 2>/dev/null | head -n 1)
if [ -z "$id" ] && [ -e "$f"tried ]; then
  jobs=$(squeue --noheader --states=all --user="$(id -un)" --format='%k %F %T') ||
    exit {UNKNOWN}
  id=$(echo "$jobs" | sed -n 's/^{comment} \\([0-9]*\\).*/\\1/p' | head -n 1)
fi{_at_once(comment, key, at_once, body)}
if [ -z "$id" ]; then
  : >"$f"tried
  id=$(sbatch --parsable --comment={comment} {options} <<'END-SBATCH-{key}'
{body}
END-SBATCH-{key}
) || exit
fi
echo "$id" | tee "$f"id"""


# A comment of its own: what could not be had at once has left a job that failed, which is
# not the job. `sbatch` is used where its own variables would have it ask for something else.
_AT_ONCE = r"""
there() {{
  case $(squeue --noheader --states=CF,R,S,ST --jobs="$id" 2>&1) in
    ''|*"Invalid job id"*) return 1
  esac
}}
hold() {{
  # not into a file that may be read
  cat >"$f"new <<'END-SALLOC-{key}' && mv "$f"new "$f"hold && echo "$id" >"$f"given || {{
{body}
END-SALLOC-{key}
    scancel "$id"; exit 74
  }}
  (
    {clear}
    host=$(uname -n) n=0
    export SLURM_SUBMIT_DIR="$PWD" SLURM_SUBMIT_HOST="${{host%%.*}}"
    # the allocation does not end because this `srun` does
    while srun --jobid="$id" --quiet --overlap --nodes=1 --ntasks=1 --job-name={key}-hold \
      /bin/sh "$f"hold; code=$?; there
    do
      case $code in 0|74) break; esac
      [ -e "$f"up ] || n=$((n + 1))
      [ -e "$f"hold ] && [ $n -lt {tries} ] || break
      sleep {pause}
    done
    n=0
    while there && ! scancel "$id" && [ $n -lt {tries} ]; do
      n=$((n + 1)); sleep {pause}
    done
  ) </dev/null >/dev/null 2>&1 &
}}
if [ -z "$id" ] && [ -e "$f"tried ]; then
  id=$(echo "$jobs" | sed -n 's/^{comment}-a \([0-9]*\) \(RUNNING\|CONFIGURING\)$/\1/p' |
    head -n 1)
  [ -z "$id" ] || hold
elif [ -z "$id" ] && ! env | grep -Eq '^(SBATCH_|SLURM_(CLUSTERS|HINT)=)'; then
  : >"$f"tried
  id=$({clear}
    salloc --no-shell --immediate=1 --comment={comment}-a {options} --nodes=1 2>&1 |
    sed -n 's/.*Granted job allocation //p')
  [ -z "$id" ] || hold
elif [ -n "$id" ] && [ "$id" = "$(cat "$f"given 2>/dev/null)" ] && [ ! -e "$f"up ]; then
  hold
fi"""


def _at_once(comment: str, key: str, options: str | None, body: str) -> str:
    if options is None:
        return ""
    return _AT_ONCE.format(
        **{"comment": comment, "key": key, "options": options, "body": body},
        clear=script.CLEAR,
        pause=script.PAUSE_SECONDS,
        tries=script.TRIES,
    )


def at_once(
    name: str, service: Service, lines: Sequence[str], **instead: JSON
) -> str | None:
    """The options of ``salloc``: see :func:`sf_quantum.connectors.slurm.options.at_once`.

    :returns: None as well for more than one node, of which a step does not know enough to
        have the variables of a batch job
    """
    asked = {**service.options, **instead}
    if str(asked.get("nodes") or 1) not in ("1", "1-1") or re.search(
        r"[,\[]", str(asked.get("nodelist") or "")
    ):
        return None
    return options.at_once(name, service, lines, **instead)


def accepted(text: str, code: int) -> str | None:
    """The job's id, if the command succeeded.

    :param text: what it printed; ``sbatch`` warns on the same stream
    """
    found = _LINE.search(text) if code == 0 else None
    return None if found is None else found[1]


def passing(text: str, code: int) -> bool:
    """Whether the same command may succeed a little later."""
    return code == UNKNOWN or _PASSING.search(text) is not None


def words(text: str) -> str:
    """What Slurm said, in one line."""
    lines = [line.removeprefix("sbatch: ") for line in text.splitlines()]
    said = [" ".join(line.removeprefix("error: ").split()) for line in lines]
    return "; ".join(line for line in said if line) or "it said nothing"
