"""The errors a user of sf_quantum can meet.

::

    QuantumError            exit 1   anything of ours; catch this to catch all
      InputError            exit 2   a file, key or option is wrong: trying again is no use
      QpuError              exit 75  the QPU or its service is in trouble: trying again may help
"""

from __future__ import annotations


class QuantumError(Exception):
    """Base of every error raised on purpose; its text is one line for a person.

    ``exit_code`` is the status with which a command ends (Contract 1).
    """

    exit_code = 1


class InputError(QuantumError):
    """Bad input: the text says what is wrong, where, and what would be right."""

    exit_code = 2


class QpuError(QuantumError):
    """A QPU that cannot answer now; 75 is ``EX_TEMPFAIL`` of ``sysexits.h``."""

    exit_code = 75
