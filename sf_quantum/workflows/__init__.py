"""The functions behind ``sfq check`` and ``sfq run``, which programs can also call.

``checks`` and ``previews`` examine a file without running it. ``runs`` starts a run,
``driver`` is the run's process, which ends with its parent process, and ``locks`` keeps
concurrent runs from sharing a folder or a database.

Imports: checking, checking/tools, connectors, journal, planning, reporting, service.
"""
