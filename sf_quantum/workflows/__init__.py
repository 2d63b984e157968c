"""What ``sfq check`` and ``sfq run`` do with a file, for programs.

``checks`` and ``previews`` look at a file, ``runs`` starts a run, ``driver`` is the process
of it, which ends as its parent does, and ``locks`` keeps two runs from one folder.

Imports: checking, checking/tools, connectors, journal, planning, reporting, service.
"""
