"""The former place of the scheduling policies; see :mod:`.base`."""
