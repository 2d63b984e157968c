"""The functions of ``sfq check`` and ``sfq run``, also for programs.

``checks`` and ``previews`` read a file without running it. ``runs`` starts a run, ``driver``
is its process, which ends with the parent process, and ``locks`` keeps two runs from one
folder.

Imports: checking, checking/tools, connectors, journal, planning, reporting, service.
"""
