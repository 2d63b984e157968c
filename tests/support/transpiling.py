"""Qiskit's transpiler without the plug-ins of IQM's client, where a test uses only Qiskit."""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import EntryPoint


def leave_out_iqm() -> None:
    """Hide the plug-ins of IQM's client from Qiskit until a test imports that client.

    Qiskit's transpiler imports every plug-in that is installed, in each process anew. IQM's
    computes the noise of five machines meanwhile, for 5 s of CPU.
    """
    if importlib.util.find_spec("stevedore") is None:
        return
    from stevedore.extension import ExtensionManager

    list_all = ExtensionManager.list_entry_points

    def list_some(self: ExtensionManager[object]) -> list[EntryPoint]:
        return [
            one
            for one in list_all(self)
            if "iqm" in sys.modules or not one.value.startswith("iqm.")
        ]

    ExtensionManager.list_entry_points = list_some  # type: ignore[assignment, method-assign]
