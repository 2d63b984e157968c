"""Sums over what the QPU did, read from the database.

``usage`` adds up QPU seconds, waits and costs by user, project or lease, as ``sfq usage`` and
budgets need them; ``utilisation`` has how busy the device was in each minute of the last hour,
for the page; ``operation`` keeps when the QPU was open or closed.
"""
