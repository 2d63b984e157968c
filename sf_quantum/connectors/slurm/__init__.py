"""``sfq.slurm``: jobs, allocations and QPU leases on a Slurm cluster.

``connector`` runs StreamFlow's commands, sets their variables, and decides whether an outcome
fails the step; ``definitions`` rejects invalid deployments, ``services`` reads the services
of a deployment, ``sbatch_options`` converts their keys to options of sbatch(1), and
``scripts`` writes the script of a job. ``queue`` submits, follows and cancels the jobs of a
deployment; each job is a state machine in ``job``. ``submission_retries`` submits a job until
Slurm accepts or refuses it, ``refusals`` explains a refusal, and ``outcomes`` determines how a
job has ended. ``quantum`` adds leases; ``node_usage`` writes the use of nodes into the
journal; ``partition`` reads a partition's queue for forecasts. ``allocation`` decides when
nodes are held, and ``transport`` communicates with Slurm.
"""
