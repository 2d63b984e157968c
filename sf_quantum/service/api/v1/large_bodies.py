"""Reads submissions that are too large to be read between two other requests.

Python reads 60 MB of JSON in a second, checks it in another and writes it down in a
third, and lets nothing else happen meanwhile, in whatever thread: so a process of its own
does all that, and gives back the text for the disk. As a program this module is that
process: a line of JSON with what the device takes and then the body on standard input, a
line of JSON with what was found and then the text on standard output.
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

# less than so much is read in some 50 ms, and a process takes longer to start
LARGE_BYTES = 1024 * 1024
SECONDS = 60
# each takes a core, and ten times its body in memory
_turns = threading.BoundedSemaphore(2)


def read(body: bytes, *, qubits: int, payloads: Sequence[Kind]) -> Submission:
    """Read a submission, and check that it can run; blocks.

    :param qubits: of the device
    :param payloads: that it takes; of others the queue says so
    :raises RequestValidationError: as the framework does for a small body
    :raises Refused: as the queue does for a small one
    """
    command = [sys.executable, "-m", __name__]
    with _turns, tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as found:
        device = {"qubits": qubits, "payloads": [*payloads]}
        given.write(json.dumps(device).encode() + b"\n")
        given.write(body)
        given.seek(0)
        try:
            status = subprocess.run(
                *(command,),
                stdin=given,
                stdout=found,
                stderr=subprocess.DEVNULL,
                timeout=SECONDS,
            ).returncode
        except subprocess.TimeoutExpired:
            status = None
        if status != 0:
            raise Refused(503, f"the body could not be read within {SECONDS} s")
        found.seek(0)
        answer = json.loads(found.readline())
        if invalid := answer.get("invalid"):
            raise RequestValidationError([invalid])
        if refused := answer.get("refused"):
            raise Refused(*refused)
        written = Written(found.read().decode(), answer.pop("digest"))
    return Submission(content=None, written=written, **answer)


def main() -> None:
    """Read one submission."""
    # the service may have died
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    device = json.loads(sys.stdin.buffer.readline())
    answer, text = _found(sys.stdin.buffer.read(), **device)
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.write(text.encode())


def _found(
    body: bytes, qubits: int, payloads: list[Kind]
) -> tuple[dict[str, JSON], str]:
    try:
        asked = JobBody.model_validate(json.loads(body)).submission()
        runner = installed().get(asked.kind)
        if runner is not None and asked.kind in payloads:
            runner.check(asked.content, asked.parameters, qubits=qubits)
    except ValidationError as error:
        first = error.errors()[0]
        where: list[JSON] = ["body", *first["loc"]]
        return {
            "invalid": {"loc": where, "msg": first["msg"], "type": first["type"]}
        }, ""
    except FieldError as error:
        return {"refused": [422, error.detail, error.field]}, ""
    except Refused as error:
        return {"refused": [error.status, error.detail, error.field]}, ""
    except (ValueError, RecursionError):
        return {"invalid": {"loc": ["body"], "msg": "", "type": "json_invalid"}}, ""
    found: dict[str, JSON] = {
        "kind": asked.kind,
        "parameters": dict(asked.parameters),
        "key": asked.key,
        "digest": asked.digest,
        "purpose": asked.purpose,
        "calibrated_within": asked.calibrated_within,
    }
    return found, asked.payload


if __name__ == "__main__":
    main()
