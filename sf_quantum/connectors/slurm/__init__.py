"""``sfq.slurm``: jobs, allocations and QPU leases on a Slurm cluster.

``connector`` takes commands from StreamFlow, sets the variables of each, and decides whether
its outcome fails the step; ``definitions`` refuses deployments that cannot be, ``services``
reads those of a deployment, ``sbatch_options`` makes options of their keys, and ``scripts``
writes the script of a job. ``queue`` submits, follows and cancels the jobs of a deployment,
each a state machine in ``job``; ``submission_retries`` submits until Slurm accepts or
refuses, ``refusals`` says why it refuses, ``outcomes`` how a job has ended. ``quantum`` adds
leases; ``node_usage`` writes nodes into the journal, ``partition`` reads the queue for
forecasts. ``allocation`` decides when nodes are held, and ``transport`` speaks to Slurm.
"""
