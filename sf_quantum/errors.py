"""The errors of sf_quantum, and the exit status of a command that fails with them.

::

    QuantumError            1    base class
      InputError            2    a file, key or option is invalid: retrying does not help
      QpuError              75   the QPU or its service is in trouble: retrying may help
"""

from __future__ import annotations


class QuantumError(Exception):
    """Base class of all errors; the text is a one-line message for the user."""

    exit_code = 1

    @property
    def lines(self) -> list[str]:
        """The message, one line per error."""
        return [" ".join(str(self).split())]


class InputError(QuantumError):
    """Invalid input: the text names the place, the fault and what is expected."""

    exit_code = 2


class QpuError(QuantumError):
    """A QPU or its service is unavailable; 75 is ``EX_TEMPFAIL`` of ``sysexits.h``."""

    exit_code = 75
