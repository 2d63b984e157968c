"""Commands for a workflow's author.

Every command is one module: ``init`` writes a first workflow, ``check`` checks a workflow,
``plan`` simulates it, ``run`` runs it, and ``report`` shows a run's journal. The commands
print the results of ``sf_quantum/workflows``, ``sf_quantum/planning`` and
``sf_quantum/reporting``.
"""
