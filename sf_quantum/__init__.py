"""Quantum locations, samplers and an example workflow for StreamFlow.

This is the Python API of the commands. Each name is imported when it is first used, so
``import sf_quantum`` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sf_quantum.checking.preview import Preview
    from sf_quantum.errors import InputError, QpuError, QuantumError
    from sf_quantum.qpu.opening import open_qpu
    from sf_quantum.reporting.runs import Report, Run
    from sf_quantum.version import __version__
    from sf_quantum.workflows.checks import CheckResult, check
    from sf_quantum.workflows.previews import preview
    from sf_quantum.workflows.runs import RunFailed, run

__all__ = [
    "CheckResult",
    "InputError",
    "Preview",
    "QpuError",
    "QuantumError",
    "Report",
    "Run",
    "RunFailed",
    "__version__",
    "check",
    "open_qpu",
    "preview",
    "run",
]
_MODULES = {
    "CheckResult": "workflows.checks",
    "InputError": "errors",
    "Preview": "checking.preview",
    "QpuError": "errors",
    "QuantumError": "errors",
    "Report": "reporting.runs",
    "Run": "reporting.runs",
    "RunFailed": "workflows.runs",
    "__version__": "version",
    "check": "workflows.checks",
    "open_qpu": "qpu.opening",
    "preview": "workflows.previews",
    "run": "workflows.runs",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
