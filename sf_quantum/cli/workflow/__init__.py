"""Commands for a workflow's author: check, init, plan, report, run.

Every command is one module: ``init`` writes a first workflow, ``check`` checks one, ``plan``
simulates it, ``run`` runs it, and ``report`` shows its journal. They print what the
rooms for workflows, planning and reporting return.
"""
