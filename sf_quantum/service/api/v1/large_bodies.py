"""Reads submissions that are too large to be parsed in this process.

Parsing, checking and rewriting 60 MB of JSON takes Python some seconds, during which no
other thread runs. Another process does it, running this module as a program. Its
standard input is a line of JSON with the limits of the device, then the body; its
standard output is a line of JSON with the submission or its refusal, then the payload
for the disk.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from sf_quantum.files import JSON
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.api.v1.models import JobBody
from sf_quantum.service.device.runners import installed
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Kind, Submission, Written

# a smaller body is parsed in some 50 ms, less than the start of a process takes
LARGE_BYTES = 1024 * 1024
SECONDS = 60
# each process takes a core, and ten times its body in memory
_processes = threading.BoundedSemaphore(2)


def read(body: bytes, *, qubits: int, payloads: Sequence[Kind]) -> Submission:
    """Read a submission and check that the device can run it; blocks.

    :param qubits: of the device
    :param payloads: that the device accepts; the queue refuses others
    :raises RequestValidationError: as FastAPI does for a small body
    :raises Refused: as the queue does for a small body
    """
    command = [sys.executable, "-m", __name__]
    with _processes, tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out:
        device = {"qubits": qubits, "payloads": [*payloads]}
        stdin.write(json.dumps(device).encode() + b"\n")
        stdin.write(body)
        stdin.seek(0)
        try:
            status = subprocess.run(
                command,
                stdin=stdin,
                stdout=out,
                stderr=subprocess.DEVNULL,
                timeout=SECONDS,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
        if status != 0:
            raise Refused(503, f"the body could not be read within {SECONDS} s")
        out.seek(0)
        answer = json.loads(out.readline())
        if invalid := answer.get("invalid"):
            raise RequestValidationError([invalid])
        if refused := answer.get("refused"):
            raise Refused(**refused)
        written = Written(out.read().decode(), answer.pop("digest"))
    return Submission(content=None, written=written, **answer)


def main() -> None:
    """Read one submission."""
    # so that it ends even if the service has died
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    device = json.loads(sys.stdin.buffer.readline())
    answer, payload = _read(sys.stdin.buffer.read(), **device)
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.write(payload.encode())


def _read(
    body: bytes, qubits: int, payloads: list[Kind]
) -> tuple[dict[str, JSON], str]:
    try:
        submission = JobBody.model_validate(json.loads(body)).submission()
        runner = installed().get(submission.kind)
        if runner is not None and submission.kind in payloads:
            runner.check(submission.content, qubits=qubits)
    except ValidationError as error:
        first = error.errors()[0]
        where: list[JSON] = ["body", *first["loc"]]
        return {
            "invalid": {"loc": where, "msg": first["msg"], "type": first["type"]}
        }, ""
    except (FieldError, Refused) as error:
        status = error.status if isinstance(error, Refused) else 422
        refused: dict[str, JSON] = {
            "status": status,
            "detail": error.detail,
            "field": error.field,
        }
        return {"refused": refused}, ""
    except (ValueError, RecursionError):
        return {"invalid": {"loc": ["body"], "msg": "", "type": "json_invalid"}}, ""
    names = ("kind", "parameters", "key", "digest", "purpose", "calibrated_within")
    return {name: getattr(submission, name) for name in names}, submission.payload


if __name__ == "__main__":
    main()
