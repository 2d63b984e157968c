#!/bin/bash
# Job template of slurm-ssh.yml. It may contain #SBATCH lines, and must put sfq on the PATH.
module purge
module load python/3.12                     # yours: the Python of the environment
source /project/sfq/bin/activate       # yours

{{ streamflow_command }}
