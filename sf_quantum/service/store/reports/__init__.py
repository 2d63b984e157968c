"""Reports on the use of the QPU, read from the database.

``usage`` adds up QPU seconds, waits and costs by user, project or lease, for ``sfq usage`` and
budgets. ``utilisation`` computes how busy the device was in each minute of the last hour, for
the service's page. ``operation`` records when the QPU was open or closed.
"""
