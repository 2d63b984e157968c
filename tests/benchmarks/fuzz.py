"""Fuzz the QPU service from its own OpenAPI document.

    python tests/benchmarks/fuzz.py [--auth none|token] [--examples 200] [--seed 1]
    python tests/benchmarks/fuzz.py --auth munge --munge-socket PATH

A separate service is started. Each operation gets as many valid requests as invalid
ones, by its description, from a stranger, a user and an admin in turn; half of them
name an existing job and lease and carry a problem that can run, so that they pass the
first checks. No answer may be 5xx (except 503 from a closed QPU), and each must be
described by the document: status, content type and schema. The test suite runs the
short form (tests/integration/test_service_fuzz.py). With MUNGE each request has a fresh
credential: of the user nobody if root runs this, else of the present user as an admin.
"""

# schemathesis' classes are generic in types that callers cannot name
# mypy: disable-error-code=type-arg

from __future__ import annotations

import argparse
import getpass
import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import APIOperation, Case, GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from sf_quantum.files import JSON
from sf_quantum.net import munge
from sf_quantum.net.transport import Client, Response
from sf_quantum.service.device.emulator.device import OPERATIONS
from sf_quantum.service.http import auth
from tests.service import example_bqm

# each request may take a lease
VQPUS = 10_000
CHECKED = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
Headers = Mapping[str, str]
# gives the headers of one request
Sender = Callable[[], Headers]
NOBODY = 65534
NAMES = [operation.name for operation in OPERATIONS]


class Refuted(AssertionError):
    """An answer that the document does not allow."""


@dataclass
class Fuzz:
    """A service and its answers.

    :param senders: a stranger, a user and an admin, as far as authentication knows them
    """

    url: str
    senders: list[Sender]
    random: random.Random
    answers: dict[str, Counter[int]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def ask(self, method: str, path: str, body: dict[str, JSON] | None = None) -> None:
        """Send a request as the admin, and ignore the answer."""
        self._sent(self.senders[-1], method, path, body)

    def operations(self, examples: int) -> None:
        """Fuzz every operation."""
        schema = schemathesis.openapi.from_url(f"{self.url}/openapi.json")
        for result in schema.get_all_operations():
            if not isinstance(result, Ok):
                raise Refuted(f"the document itself is wrong: {result.err()}")
            operation = result.ok()
            self.answers[operation.label] = Counter()
            for mode in _modes(operation):
                try:
                    self._operation(operation, mode, examples)
                except (Refuted, FailureGroup, OSError) as error:
                    self.failures.append(f"{operation.label} ({mode.value}): {error}")

    def _operation(
        self, operation: APIOperation, mode: GenerationMode, examples: int
    ) -> None:
        @seed(self.random.getrandbits(32))
        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def fuzz(case: Case) -> None:
            self.one(case, self.answers[operation.label])

        # nothing is forbidden to a request without parameters
        with suppress(Unsatisfiable):
            fuzz()

    def one(self, case: Case, answers: Counter[int]) -> None:
        """Send one request and check its answer."""
        sender, known = self.random.choice(self.senders), {}
        if self.random.random() < 0.5:
            known = self.known(case)
        response = case.call(headers={**sender(), **known}, timeout=10)
        answers[response.status_code] += 1
        if response.status_code >= 500 and response.status_code != 503:
            raise Refuted(f"{response.status_code}: {case.as_curl_command()}")
        case.validate_response(response, checks=CHECKED)
        if response.status_code == 503 or case.path.endswith(("/close", "/drain")):
            self.ask("POST", "/v1/device/open", {})
        if case.method == "PATCH":
            self.ask("PATCH", "/v1/device", {"vqpus": VQPUS})

    def known(self, case: Case) -> dict[str, str]:
        """Put existing jobs, leases and problems into a request.

        :returns: the header of a lease
        """
        user = self.senders[1 % len(self.senders)]
        lease = str(self._sent(user, "POST", "/v1/leases", {}).json().get("id", ""))
        body: dict[str, JSON] = {"problem": example_bqm()}
        body["idempotency_key"] = f"{self.random.random()}"
        submitted = self._sent(user, "POST", "/v1/jobs", body, {"X-SFQ-Lease": lease})
        job = submitted.json().get("id")
        self._sent(user, "GET", f"/v1/jobs/{job}?wait=1")
        there = {"job_id": job, "lease_id": lease, "session_id": lease}
        there["name"] = self.random.choice(NAMES)
        for name in case.path_parameters:
            if there.get(name):
                case.path_parameters[name] = there[name]
        if isinstance(case.body, dict) and "problem" in case.body:
            case.body["problem"] = example_bqm()
            case.body.pop("sequence", None)
            case.body.pop("circuit", None)
        return {"X-SFQ-Lease": lease, "X-Warden-Session": lease} if lease else {}

    def _sent(
        self,
        sender: Sender,
        method: str,
        path: str,
        body: dict[str, JSON] | None = None,
        headers: Headers | None = None,
    ) -> Response:
        return Client(self.url, {**sender(), **(headers or {})}).request(
            method, path, body
        )


def _modes(operation: APIOperation) -> Iterator[GenerationMode]:
    yield GenerationMode.POSITIVE
    described = operation.definition.raw
    schemas = [parameter["schema"] for parameter in described.get("parameters", ())]
    if "requestBody" in described or not all(map(_is_any_text, schemas)):
        yield GenerationMode.NEGATIVE


def _is_any_text(schema: Mapping[str, JSON]) -> bool:
    """Whether every text is valid, of which hypothesis would try hundreds."""
    options = schema.get("anyOf", [schema])
    return all(
        option.keys() <= {"type", "title", "description"}
        and option.get("type") in ("string", "null")
        for option in cast("list[dict[str, JSON]]", options)
    )


@contextmanager
def service(
    mode: str, folder: Path, socket: str | None
) -> Iterator[tuple[str, list[Sender]]]:
    """Start a service.

    :param socket: of munged
    :returns: its URL, and the senders
    """
    config = folder / "qpu.yml"
    # else mostly the rate limit would be tested
    config.write_text(
        "limits: {requests_per_second: 1000000}\nleases: {wait_seconds: 0.1}\n"
    )
    options = ["--auth", mode, "--time-scale", "0", "--vqpus", f"{VQPUS}"]
    options += ["--config", str(config)]
    senders: list[Sender] = [dict]
    if mode == "munge":
        with config.open("a") as file:
            file.write(f"auth: {{admins: [{getpass.getuser()}]}}\n")
        options += ["--munge-socket", socket] if socket else []
        senders += _munge(socket)
    if mode == "token":
        tokens = folder / "tokens.yml"
        tokens.touch(0o600)
        made = {name: auth.new_token() for name in ("ada", "root")}
        entries = [auth.entry(n, t, admin=n == "root") for n, t in made.items()]
        tokens.write_text(json.dumps(entries))
        options += ["--tokens", str(tokens)]
        senders += [_bearer(token) for token in made.values()]
    command = ["sfq", "serve", *options, "--until-eof"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        if process.stdout is None or process.stdin is None:
            raise RuntimeError("no pipes")
        try:
            yield str(json.loads(process.stdout.readline())["url"]), senders
        finally:
            process.stdin.close()
            process.wait(10)


def _bearer(token: str) -> Sender:
    return lambda: {"Authorization": f"Bearer {token}"}


def _munge(socket: str | None) -> list[Sender]:
    def own() -> Headers:
        return {"X-Munge-Cred": munge.encode(socket)}

    def nobodys() -> Headers:
        # the command, since this Python may not be another user's to run
        command = ["munge", "--no-input", f"--socket={socket}"]
        done = subprocess.run(command, user=NOBODY, capture_output=True, check=True)
        return {"X-Munge-Cred": done.stdout.decode().strip()}

    return [nobodys, own] if os.geteuid() == 0 else [own]


def main() -> int:
    """Fuzz, and print the answers.

    :returns: 1 if an answer is not allowed
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--auth", choices=["none", "token", "munge"], default="none")
    parser.add_argument("--munge-socket", help="munged's (default: usual)")
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--seed", type=int, default=secrets.randbits(16))
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="sfq-") as folder,
        service(args.auth, Path(folder), args.munge_socket) as (url, senders),
    ):
        fuzz = Fuzz(url, senders, random.Random(args.seed))
        fuzz.operations(args.examples)
    for label, answers in fuzz.answers.items():
        counted = "  ".join(f"{status}: {n}" for status, n in sorted(answers.items()))
        print(f"{label:40} {counted}")
    total = sum(sum(answers.values()) for answers in fuzz.answers.values())
    print(f"{total} requests, {len(fuzz.failures)} failures, seed {args.seed}")
    print(*fuzz.failures, sep="\n", file=sys.stderr)
    return bool(fuzz.failures)


if __name__ == "__main__":
    sys.exit(main())
