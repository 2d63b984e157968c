"""How a job gets into Slurm's queue: once, however often that has to be tried."""

from __future__ import annotations

import re
import shlex

from sf_quantum.connectors.slurm import script

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
  jobs=$(squeue --noheader --states=all --user="$(id -un)" --format='%k %F') || exit {UNKNOWN}
  id=$(echo "$jobs" | sed -n 's/^{comment} //p' | head -n 1)
fi
if [ -z "$id" ]; then
  : >"$f"tried{_at_once(comment, key, at_once, body)}
fi
if [ -z "$id" ]; then
  id=$(sbatch --parsable --comment={comment} {options} <<'END-SBATCH-{key}'
{body}
END-SBATCH-{key}
) || exit
fi
echo "$id" | tee "$f"id"""


def _at_once(comment: str, key: str, options: str | None, body: str) -> str:
    if options is None:
        return ""
    return f"""
  id=$(salloc --no-shell --immediate=1 --comment={comment} {options} 2>&1 |
    sed -n 's/.*Granted job allocation //p')
  if [ -n "$id" ]; then
    cat >"$f"hold <<'END-SALLOC-{key}'
{body}
END-SALLOC-{key}
    (srun --jobid="$id" --quiet --overlap --nodes=1 --ntasks=1 /bin/sh "$f"hold || scancel "$id"
    ) </dev/null >/dev/null 2>&1 &
  fi"""


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
