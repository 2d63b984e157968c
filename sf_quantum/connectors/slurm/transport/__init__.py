"""Communication with Slurm: with commands on a login node, or over ``slurmrestd``.

``controller`` defines the driver's requests to Slurm, and sends them with Slurm's commands;
``submit_command`` has the command that submits a job only once, ``answers`` has the other
commands and reads their output, and ``pacing`` merges concurrent calls. ``login`` runs shell
commands on the login node, and ``spool_shell`` keeps a shell there that reports the ends of
jobs. ``rest`` sends the requests over HTTP: ``rest_job`` converts jobs to and from JSON, and
``slurmrestd`` is the HTTP client.
"""
