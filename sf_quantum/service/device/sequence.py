"""Pulse sequences (Pulser's abstract representation), simulated where Pulser is."""

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
from functools import cache

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.device import pulser_process

POLL_SECONDS = 0.02
CHECK_SECONDS = 30.0
MISSING = (
    "this service cannot run sequences: pulser-simulation is not installed "
    "(pip install 'sf-quantum[pulser]')"
)
# each check is a process of its own: limits those of many requests at once
_checks = threading.BoundedSemaphore(2)
_asking_specs = threading.Lock()


class SequenceRunner:
    """Simulates sequences, without noise; see :class:`.runners.Runner`."""

    def check(
        self, content: JSON, parameters: Mapping[str, int | None], *, qubits: int
    ) -> None:
        """See :meth:`.runners.Runner.check`; takes about a second."""
        if not isinstance(content, str):
            raise FieldError("sequence", "expected a text")
        if not available():
            raise FieldError("sequence", MISSING)
        with _checks:
            give_up = time.monotonic() + CHECK_SECONDS
            answer = _ask(
                {"sequence": content, "qubits": qubits},
                lambda: time.monotonic() > give_up,
            )
        if answer is None:
            detail = f"it takes more than {CHECK_SECONDS:.0f} s to read"
            raise FieldError("sequence", detail)
        if "error" in answer:
            raise FieldError("sequence", str(answer["error"]))

    def run(
        self,
        content: JSON,
        parameters: Mapping[str, int | None],
        interrupted: Callable[[], bool],
    ) -> dict[str, JSON]:
        """See :meth:`.runners.Runner.run`.

        :returns: ``counter``, the counts of the bit strings, atoms in the order of the
            register, as Pasqal's own service answers and its clients read
        :raises InputError: if it cannot be simulated
        """
        if not available():
            raise InputError(MISSING)
        request: dict[str, JSON] = {"sequence": content, "qubits": sys.maxsize}
        request |= {
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
    """Describe the emulated device; the first time takes about a second.

    :param name: of the device, which is the whole description without Pulser
    :returns: JSON text, Pulser's abstract representation of a device
    """
    with _asking_specs:  # later callers wait for the first one's answer
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
    """Have a process of its own answer a request; ``None`` if it was given up."""
    command = [sys.executable, "-m", "sf_quantum.service.device.pulser_process"]
    # one thread each: a simulation shares the machine with the service
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    with tempfile.TemporaryFile() as output:
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **threads},
        ) as process:
            try:
                given_up = _follow(process, json.dumps(request), give_up)
            finally:
                process.kill()
        if given_up:
            return None
        output.seek(0)
        try:
            answer = json.loads(output.read())
        except ValueError:
            answer = None
    if isinstance(answer, dict):
        return answer
    if process.returncode == -signal.SIGXCPU:
        return {
            "error": f"it takes more than {pulser_process.CPU_SECONDS} s to simulate"
        }
    return {"error": f"its simulation ended with status {process.returncode}"}


def _follow(
    process: subprocess.Popen[bytes], request: str, give_up: Callable[[], bool]
) -> bool:
    if process.stdin is None:
        raise RuntimeError("no pipe")
    try:
        process.stdin.write(request.encode() + b"\n")
        process.stdin.flush()
    except BrokenPipeError:  # it died at once; its status says why
        return False
    while process.poll() is None:
        if give_up():
            return True
        time.sleep(POLL_SECONDS)
    return False
