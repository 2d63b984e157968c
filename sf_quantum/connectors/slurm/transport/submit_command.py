"""The idempotent shell command that submits a job; a repetition finds the same job."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from sf_quantum.connectors.slurm import scripts
from sf_quantum.slurm import ids

_SUBMISSION = """\
{plain}
f={file}
id=
[ ! -e "$f"tried ] || id=$(cat "$f"id "$f"lock "${{f%.}}"-*.lock 2>/dev/null | head -n 1)
if [ -z "$id" ] && [ -e "$f"tried ]; then
  for at in {clusters}; do
    jobs=$(plain squeue $at --noheader --states=all --user="$(id -un)" \\
      --format='%F %T %k') || exit {unknown}
    id=$(echo "$jobs" | sed -n 's/^\\([0-9]*\\) [A-Z_]* {comment}\\( .*\\)*$/\\1/p' | head -n 1)
    [ -z "$id" ] || {{ id="$id;${{at#--clusters=}}"; break; }}
  done
fi{at_once}
if [ -z "$id" ]; then
  {record}: >"$f"tried
  # sbatch would use these to wait for the job's end, or submit elsewhere or several times
  id=$(unset SBATCH_WAIT SBATCH_CLUSTERS SLURM_CLUSTERS SBATCH_ARRAY_INX
    exec sbatch --parsable --comment={comment}{note} {options} <<'END-SBATCH-{key}'
{body}
END-SBATCH-{key}
) || exit
  # what a site has in the place of sbatch may print lines of its own
  told=$(echo "$id" | sed -n '/^[0-9][0-9]*\\(;[A-Za-z0-9_.-]*\\)\\{{0,1\\}}$/p' | tail -n 1)
  id=${{told:-$id}}
fi
echo "$id" >"$f"id
echo "$id"
"""
# Requests an allocation with `salloc`, only if Slurm would start the job now, and if no
# environment variables set options of `sbatch`. Its comment differs from the comment of
# `sbatch`: a request that gets no nodes leaves a failed job in the queue and in the
# accounting, which must not be taken for the submitted job.
_SALLOC = r"""
id=${{id%%;*}}
# 0 while Slurm lists the allocation, 1 once it does not; 2 without an answer
there() {{
  if told=$(plain timeout "${{left:-{patience}}}" \
    squeue --noheader --states=CF,R,S,ST --jobs="$id" 2>&1)
  then
    [ -n "$told" ]; return
  fi
  case $told in *"Invalid job id"*) return 1; esac
  return 2
}}
now() {{
  set -- $({clear}
    SLURM_TIME_FORMAT=%s sbatch --test-only {options} --nodes=1 --wrap=true 2>&1 |
    sed -n 's/.*Job \([0-9]*\) to start at \([0-9][0-9]*\) .*/\1 \2/p')
  [ $# -gt 0 ] && [ $2 -le $(($(date +%s) + 1)) ] || return 1
  # another cluster of a federation might grant the allocation
  [ $1 -le {max} ] || return 1
  # the allocation may not pass by the jobs that wait for nodes
  ! plain squeue --noheader --states=PENDING {partition} --format=%r |
    grep -Eqx 'None|Priority|Resources'
}}
# nobody tells Slurm that the steps of an allocation without a batch script have been killed
# with their node, if its daemon is back soon; the clock is that of the file system
silent() {{
  cat "$f"now >/dev/null 2>&1
  seen=$(stat -c %Y "$f"now 2>/dev/null || stat -c %Y "$f"up 2>/dev/null) &&
    alive=$(stat -c %Y "${{f%/*}}/alive" 2>/dev/null) && [ $((alive - seen)) -gt {silent} ]
}}
# whether the driver has lately shown a sign of life, by the clock of the file system
driven() {{
  touch "$f"given
  now=$(stat -c %Y "$f"given) && alive=$(stat -c %Y "${{f%/*}}/alive") &&
    [ $((now - alive)) -le {silent} ]
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
      if silent && plain timeout {patience} scancel "$id"; then break; fi
      sleep {pause}
    done & watch=$!
    # the end of this `srun` does not end the allocation
    while srun --jobid="$id" --quiet --overlap --nodes=1 --ntasks=1 --job-name={key}-hold \
      /bin/sh "$f"hold; code=$?; there || {{ [ $? = 2 ] && driven; }}
    do
      case $code in 0|74) break; esac
      [ -e "$f"up ] || n=$((n + 1))
      [ -e "$f"hold ] && [ $n -lt {tries} ] || break
      sleep {pause}
    done
    kill $watch 2>/dev/null
    # a cluster that is gone would let each of these commands wait for minutes
    end=$(($(date +%s) + {patience}))
    while left=$((end - $(date +%s))); [ $left -gt 0 ] && {{ there || [ $? = 2 ]; }} &&
      ! plain timeout "$left" scancel "$id"
    do sleep {pause}; done
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
#: time without a sign of life of its script after which an allocation is cancelled
SILENT_SECONDS = 120
#: longest wait of the shell for a command about an allocation, or for an allocation's end
PATIENCE_SECONDS = 60


def submission_command(
    spool: str,
    key: str,
    body: str,
    *,
    comment: str,
    note: str = "",
    options: str,
    at_once: str | None,
    clusters: Sequence[str] = (),
) -> str:
    """Return an idempotent shell command that submits a job and prints the job's id.

    If the answer of ``sbatch`` was lost, the command finds the job by its id in the spool or,
    before the job's script has begun, by its unique comment in the queue.

    :param note: rest of the comment, quoted for the shell
    :param options: options of ``sbatch``, quoted for the shell
    :param at_once: options of ``salloc``, which grants free nodes without waiting for the
        next cycle of Slurm's scheduler; the script then runs as a step. ``None`` to use only
        ``sbatch``
    :param clusters: clusters that the options name
    """
    common = {"comment": comment, "note": note, "key": key, "body": body}
    salloc = ""
    if at_once is not None:
        match = re.search(r'--partition="[^"]*"', at_once)
        salloc = _SALLOC.format(
            options=at_once,
            partition=match[0] if match else "",
            clear=scripts.CLEAR,
            pause=scripts.PAUSE_SECONDS,
            silent=SILENT_SECONDS,
            patience=PATIENCE_SECONDS,
            tries=scripts.TRIES,
            unknown=scripts.UNKNOWN,
            max=ids.MAX_NUMBER,
            **common,
        )
    named = " ".join(f"--clusters={cluster}" for cluster in clusters)
    # The clusters are recorded first, so that the login node's shell can find the job.
    record = f"""printf '%s\\n' {named} >>"${{f%/*}}/clusters" || exit {scripts.UNKNOWN}\n  """
    file = shlex.quote(scripts.path(spool, key, ""))
    return _SUBMISSION.format(
        plain=scripts.PLAIN,
        file=file,
        unknown=scripts.UNKNOWN,
        options=options,
        at_once=salloc,
        clusters=named or "''",
        record=record if named else "",
        **common,
    )
