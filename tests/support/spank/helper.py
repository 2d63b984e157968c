"""What the tests' SPANK plugin asks of a QPU: ``acquire FILE NAMES``, ``release FILE TOKENS``."""

from __future__ import annotations

import sys

from sf_quantum.errors import QuantumError
from sf_quantum.qpu import Qpu
from sf_quantum.qpu.environment import job_environment
from sf_quantum.qpu.selection import QpuSelection


def acquire(path: str, names: str) -> None:
    """Print the variables of the QPUs that are to be had, and then their tokens."""
    held: list[tuple[Qpu, str]] = []
    for name in names.split(","):
        try:
            (client,) = QpuSelection([name], qrmi_config=path).qpus({})
            held.append((client, client.acquire("slurm")))
        except QuantumError as error:
            print(error, file=sys.stderr)
    variables = job_environment(held)
    for key in ("RESOURCES", "TYPES"):
        # as the plugin calls them; QRMI knows both
        value = variables.pop(f"QRMI_JOB_QPU_{key}")
        print(f"SLURM_JOB_QPU_{key}={value}")
    print("\n".join(f"{key}={value}" for key, value in variables.items()))
    print(",".join(f"{client.name}:{token}" for client, token in held))


def release(path: str, tokens: str) -> None:
    """Give leases back."""
    for word in tokens.split(","):
        name, _, token = word.partition(":")
        (client,) = QpuSelection([name], qrmi_config=path).qpus({})
        client.release(token)


if __name__ == "__main__":
    {"acquire": acquire, "release": release}[sys.argv[1]](*sys.argv[2:])
