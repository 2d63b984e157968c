"""Values from the journals of earlier runs: phases and overheads, with their spread.

``journals`` chooses the runs, ``fitting`` fits phases and overheads to them, and ``sources``
reports which figures of a plan were measured and which are defaults.
"""
