"""Strategies that hold nodes: for each step, in elastic allocations, or for the whole run.

Each strategy is one module: ``per_step``, ``reserved``, and ``elastic_service`` with the
rules in ``elastic_rules``. ``slurm_allocation`` submits the batch jobs that hold nodes;
``step`` runs a job of the workflow (``step_job``) on these nodes with srun(1), and
``nodes_wait`` records the job's wait for nodes. For elastic allocations, ``requests``
determines the requested nodes and time, ``limits`` shortens time limits and checks which jobs
still fit, and ``forecast`` determines when to request nodes; ``history`` replays journals for
the forecast.
"""
