#!/bin/sh
# For users, under `sfq lease`: submits a batch job and waits for its end. A signal ends the
# wait and the job, which sbatch alone would leave in the queue without its lease.
#
#     sfq lease --qpu fresnel -- ./sbatch-leased.sh --partition=quantum job.sh
#
# It finds the job by the name that it gives it, so do not pass --job-name.
name="lease-$(uname -n)-$$-$(date +%s)"
# A signal that arrives between sbatch's start and its submission leaves no job either.
trap 'kill "$submitter"; wait "$submitter"; scancel --user="$(id -un)" --name="$name"; exit 143' \
	HUP INT TERM
# Without --export=ALL, SBATCH_EXPORT=NONE or --export in the script would keep the lease's
# variables from the job.
sbatch --wait --export=ALL --job-name="$name" "$@" &
submitter=$!
wait "$submitter" || exit
# sbatch also ends with 0 if Slurm has forgotten the job, as a controller may that was killed, and
# waits for another one if Slurm has given that the same id.
states=$(squeue --noheader --states=all --user="$(id -un)" --name="$name" --format=%T)
[ "$states" ] || states=$(sacct --allclusters --noheader --allocations --name="$name" --format=State 2>/dev/null)
case $states in
*CANCELLED*)
	echo "$0: the job $name was cancelled" >&2
	exit 1
	;;
*COMPLET*) exit ;;
esac
echo "$0: Slurm does not know the job $name any more: whether it has run is unknown" >&2
exit 1
