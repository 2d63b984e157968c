"""How the driver reaches Slurm: commands on a login node, or ``slurmrestd``.

``controller`` is what the driver asks of Slurm, and asks it by commands; ``submit_command``
is the one that submits a job once, ``answers`` reads what the others print, ``pacing`` joins
equal ones. ``login`` runs shell commands on the login node, ``spool_shell`` keeps one there
that reports the ends of jobs. ``rest`` is a controller over HTTP: ``rest_job`` writes its
jobs, ``slurmrestd`` sends the requests.
"""
