#!/bin/bash
# The script of each job of slurm-ssh.yml. Lines of #SBATCH may stand here as well as keys in the
# service; what is installed has to be found from here.
module purge
module load python/3.12                     # yours: the one that the environment was made with
source /project/sfq/bin/activate       # yours: see the README

{{ streamflow_command }}
