"""When nodes are held: per step, in elastic allocations, or reserved for the run.

Each strategy is one module: ``per_step``, ``reserved``, and ``elastic_service`` with the
rules of ``elastic_rules``. ``slurm_allocation`` has the batch jobs that hold nodes;
``step_job`` and ``step`` run a job of the workflow on them by srun, and ``nodes_wait``
records its wait for them. ``requests`` says what an elastic allocation asks for, ``limits``
how long it lasts, ``forecast`` when to ask for the next one, from what ``history`` reads of
journals.
"""
