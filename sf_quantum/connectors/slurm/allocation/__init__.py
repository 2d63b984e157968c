"""When nodes are held: per step, in elastic allocations, or reserved for the run.

Each strategy is one module: ``per_step``, ``reserved``, and ``elastic_service`` with the
rules of ``elastic_rules``. ``slurm_allocation`` submits the batch jobs that hold nodes;
``step_job`` and ``step`` run a job of the workflow on these nodes with srun, and
``nodes_wait`` records the job's wait for them. ``requests`` determines what an elastic
allocation requests, ``limits`` its time limit and which jobs still fit into it, and
``forecast`` when to request the next one; ``history`` replays journals for the forecast.
"""
