"""The errors of sf_quantum, with the exit status of a command that meets them.

::

    QuantumError            1    base class
      InputError            2    a file, key or option is invalid: retrying does not help
      QpuError              75   the QPU or its service is in trouble: retrying may help
"""

from __future__ import annotations


class QuantumError(Exception):
    """Base class of our errors; the text is one line for a person.

    ``exit_code`` is the exit status of a command (Contract 1).
    """

    exit_code = 1


class InputError(QuantumError):
    """Bad input: the text says what is wrong, where, and what would be right."""

    exit_code = 2


class QpuError(QuantumError):
    """A QPU is unavailable; 75 is ``EX_TEMPFAIL`` of ``sysexits.h``."""

    exit_code = 75
