"""What ``sfq check`` and ``sfq run`` do with a file, for programs.

``checks`` and ``previews`` look at a file, ``runs`` starts a run and ``driver`` is the process
of it, which ends as its parent does.

Imports: checking, checking/tools, connectors, journal, planning, reporting, service.
"""
