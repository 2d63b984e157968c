#!/bin/sh
# For users, under `sfq lease`: submits a batch job and waits for its end. A signal ends the
# wait and the job, which sbatch alone would leave in the queue without its lease.
#
#     sfq lease --qpu fresnel -- ./sbatch-leased.sh --partition=quantum job.sh
name="lease-$(uname -n)-$$"
# A signal that arrives between sbatch's start and its submission leaves no job either.
trap 'kill "$submitter"; wait "$submitter"; scancel --user="$(id -un)" --name="$name"; exit 143' \
	HUP INT TERM
# Without --export=ALL, SBATCH_EXPORT=NONE or --export in the script would keep the lease's
# variables from the job.
sbatch --wait --export=ALL --job-name="$name" "$@" &
submitter=$!
wait "$submitter"
