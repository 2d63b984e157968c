"""What the journals of earlier runs tell: phases, overheads, and how sure they are.

``journals`` chooses the runs, ``fitting`` fits phases and overheads to them, and ``sources``
says which figures of a plan were measured and which are defaults.
"""
