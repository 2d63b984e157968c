"""The stock ``qrmi`` client as a process: a call per line of JSON in, an answer per line out.

It is run where the default socket of MUNGE is the tests' own, since libmunge, which the
client loads, knows no other.
"""

from __future__ import annotations

import json
import os
import sys

from qrmi import Payload, QuantumResource, ResourceType

NAME = "local_qpu"


def call(resource: QuantumResource, name: str, *values: str) -> str:
    """Make a call as a job would; the token of ``acquire`` goes into the environment."""
    if name == "task_start":
        payload = Payload.PasqalCloud(sequence=values[0], job_runs=int(values[1]))
        return str(resource.task_start(payload))
    answer = getattr(resource, name)(*values)
    if name == "acquire":
        os.environ[f"{NAME}_QRMI_JOB_ACQUISITION_TOKEN"] = answer
    if name == "status":
        return json.dumps(answer.to_dict())
    if name in ("target", "task_result"):
        return str(answer.value)
    return str(answer)


def main() -> None:
    """Answer until the input ends."""
    resource = QuantumResource(NAME, ResourceType.PasqalLocal)
    for line in sys.stdin:
        try:
            answer = {"ok": call(resource, *json.loads(line))}
        except RuntimeError as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
