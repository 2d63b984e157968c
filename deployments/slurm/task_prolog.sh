#!/bin/sh
# TaskProlog of slurm.conf: a job that `sfq slurm gate` has released finds its lease in its
# environment. Steps of srun inherit it from the batch script.
[ "$SLURM_JOB_PARTITION" = quantum ] || exit 0                                       # yours
[ -z "$QRMI_JOB_QPU_RESOURCES" ] || exit 0
/opt/sfq/bin/sfq slurm environment --qrmi-config /etc/slurm/qrmi_config.json --qpu qpu  # yours
exit 0
