"""Simulation of pulse sequences in Pulser's abstract representation."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from typing import cast

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device import pulser_process
from sf_quantum.service.device.technologies import JobParameters

POLL_SECONDS = 0.02
CHECK_SECONDS = 30.0
MISSING = (
    "this service cannot run sequences: pulser-simulation is not installed "
    "(pip install 'sf-quantum[pulser]')"
)
# limits the number of processes, since each check starts one
_checks = threading.BoundedSemaphore(2)
_specs_lock = threading.Lock()


class SequenceSimulator:
    """Simulates sequences, without noise; see :class:`.runners.Runner`."""

    def check(self, content: JSON, *, qubits: int) -> None:
        """See :meth:`.runners.Runner.check`; takes about a second."""
        if not isinstance(content, str):
            raise FieldError("sequence", "expected text")
        if not available():
            raise FieldError("sequence", MISSING)
        with _checks:
            deadline = time.monotonic() + CHECK_SECONDS
            request: dict[str, JSON] = {"sequence": content, "qubits": qubits}
            answer = _ask(request, lambda: time.monotonic() > deadline)
        if answer is None:
            detail = f"parsing takes more than {CHECK_SECONDS:.0f} s"
            raise FieldError("sequence", detail)
        if "error" in answer:
            raise FieldError("sequence", str(answer["error"]))

    def run(
        self, content: JSON, parameters: JobParameters, interrupted: Callable[[], bool]
    ) -> dict[str, JSON]:
        """See :meth:`.runners.Runner.run`.

        :returns: ``counter``, the counts of the bit strings, with atoms in the order of
            the register, as in Pasqal's cloud service
        :raises InputError: if the sequence cannot be simulated
        """
        if not available():
            raise InputError(MISSING)
        request: dict[str, JSON] = {
            "sequence": content,
            "qubits": sys.maxsize,
            "shots": parameters.get("num_reads") or 1,
            "seed": parameters.get("seed") or 0,
        }
        answer = _ask(request, interrupted)
        if answer is None:
            return {}
        if "error" in answer:
            raise InputError(str(answer["error"]))
        return answer


def specs(name: str, qubits: int) -> str:
    """Return Pulser's abstract representation of a device, JSON; may take a second.

    :param name: name of the device, which is the only content without Pulser
    """
    with _specs_lock:  # concurrent calls start only one process
        return _specs(name, qubits)


def available() -> bool:
    """Return whether Pulser and its simulator are installed; imports neither."""
    names = ("pulser", "pulser_simulation")
    return all(importlib.util.find_spec(name) is not None for name in names)


@cache
def _specs(name: str, qubits: int) -> str:
    answer = _ask({"qubits": qubits}, lambda: False) if available() else None
    specs = (answer or {}).get("specs")
    return specs if isinstance(specs, str) else json.dumps({"name": name})


def _ask(
    request: Mapping[str, JSON], give_up: Callable[[], bool]
) -> dict[str, JSON] | None:
    """Run a process that answers a request; ``None`` if it was abandoned."""
    command = [sys.executable, "-m", "sf_quantum.service.device.pulser_process"]
    # single-threaded, since simulations share the machine with the service
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **threads},
        )
        # if the process has ended, its status is reported
        with suppress(BrokenPipeError), process:
            if process.stdin is None:
                raise RuntimeError("no pipe")
            try:
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
                while process.poll() is None:
                    if give_up():
                        return None
                    time.sleep(POLL_SECONDS)
            finally:
                process.kill()
        if process.returncode == 0:
            output.seek(0)
            with suppress(ValueError):  # a library may end the process, or print
                return cast("dict[str, JSON]", json.loads(output.read()))
    if process.returncode == -signal.SIGXCPU:
        limit = f"{pulser_process.CPU_SECONDS} s"
        return {"error": f"the simulation takes more than {limit} of CPU time"}
    return {"error": f"the simulation ended with status {process.returncode}"}
