"""How the driver reaches Slurm: commands on a login node, or ``slurmrestd``.

``controller`` defines the driver's requests to Slurm, and makes them with Slurm's commands;
``submit_command`` is the command that submits a job only once, ``answers`` has the other
commands and reads their output, and ``pacing`` merges concurrent calls. ``login`` runs shell
commands on the login node, and ``spool_shell`` keeps a shell there that reports the ends of
jobs. ``rest`` is a controller over HTTP: ``rest_job`` converts its jobs, ``slurmrestd`` sends
the requests.
"""
