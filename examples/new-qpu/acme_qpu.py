"""A QPU of a vendor that sf_quantum has never heard of, with a REST API of its own.

=======================  ==================================  =================================
``GET /machine``                                             ``{state, spins, jobs}``
``PUT /booking/ID``                                          201, or 423 while booked
``DELETE /booking/ID``                                       204
``GET /booking/ID``                                          ``{runs: [{run, phase, micros}]}``
``POST /booking/ID/run`` ``{h, J: [[i, j, value]], shots}``  ``{run}``
``GET /run/ID``                                              ``{phase, spins, micros}``
=======================  ==================================  =================================
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Self

from dimod import BinaryQuadraticModel, SampleSet, Vartype
from dimod.core.sampler import Sampler

from sf_quantum import samplers
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.net.transport import Client, Response, Unreachable
from sf_quantum.qpu import NoLease, Qpu, QpuStatus

POLL_SECONDS = 0.05
MICROSECONDS = 1e6
# of a run, as sf_quantum calls them
STATES = {"waiting": "Queued", "running": "Running", "done": "Completed"}


class AcmeQpu(Qpu):
    """Acme's QPU; a lease is a booking.

    :param booking: on the job's side
    """

    type = "acme"

    def __init__(self, name: str, url: str, booking: str = "") -> None:
        super().__init__(name)
        self._client = Client(url, {})
        self.booking = booking

    @classmethod
    def from_config(cls, name: str, config: Mapping[str, JSON]) -> Self:
        """See :meth:`Qpu.from_config`; the key is ``url``."""
        for key in config:
            if key != "url":
                raise InputError(samplers.unknown("key", key, ["url"]))
        if not isinstance(config.get("url"), str):
            raise InputError(f"url: missing in the configuration of QPU {name!r}")
        return cls(name, str(config["url"]))

    def status(self) -> QpuStatus:
        """See :meth:`Qpu.status`."""
        told = self.ask("GET", "/machine").json()
        spins, jobs = told["spins"], told["jobs"]
        if not isinstance(spins, int) or not isinstance(jobs, int):
            raise QpuError(f"QPU {self.name!r}: no machine of Acme's")
        up = told["state"] == "up"
        reason = "" if up else f"it is {told['state']}"
        return QpuStatus("acme", "annealer", up, reason, spins, 1, 0, jobs)

    def acquire(self, job: str | None = None) -> str:
        """See :meth:`Qpu.acquire`."""
        booking = secrets.token_hex(8)
        if self.ask("PUT", f"/booking/{booking}").status == 423:
            raise NoLease(f"QPU {self.name!r} is booked")
        return booking

    def jobs(self, token: str) -> list[dict[str, JSON]] | None:
        """See :meth:`Qpu.jobs`."""
        runs = self.ask("GET", f"/booking/{token}").json()["runs"]
        return [_told(run) for run in runs] if isinstance(runs, list) else None

    def release(self, token: str) -> None:
        """See :meth:`Qpu.release`."""
        self.ask("DELETE", f"/booking/{token}")

    def environment(self, token: str) -> dict[str, str]:
        """See :meth:`Qpu.environment`."""
        told = {"ACME_URL": self._client.url, "ACME_BOOKING": token}
        return {f"{self.name}_{key}": value for key, value in told.items()}

    @classmethod
    def from_environment(cls, name: str, environment: Mapping[str, str]) -> Self:
        """See :meth:`Qpu.from_environment`."""
        values = []
        for key in (f"{name}_ACME_URL", f"{name}_ACME_BOOKING"):
            if not environment.get(key):
                raise InputError(f"{key} is not set, though QPU {name!r} is there")
            values.append(environment[key])
        return cls(name, *values)

    def sampler(self) -> Sampler:
        """See :meth:`Qpu.sampler`."""
        return AcmeSampler(self)

    def ask(
        self, method: str, path: str, body: Mapping[str, JSON] | None = None
    ) -> Response:
        """Send a request.

        :raises InputError: if it is refused
        :raises QpuError: if there is no answer, or none that is any use
        """
        try:
            answer = self._client.request(method, path, body)
        except Unreachable as error:
            raise QpuError(f"QPU {self.name!r} does not answer: {error}") from error
        words = f"QPU {self.name!r}: status {answer.status}"
        if answer.status >= 500:
            raise QpuError(words)
        if answer.status >= 400 and answer.status != 423:
            raise InputError(words)
        return answer


def _told(run: JSON) -> dict[str, JSON]:
    told = run if isinstance(run, dict) else {}
    micros = told.get("micros")
    return {
        "id": str(told.get("run")),
        "state": STATES.get(str(told.get("phase")), "Failed"),
        "qpu_seconds": micros / MICROSECONDS if isinstance(micros, int | float) else 0,
    }


class AcmeSampler(Sampler):
    """Sends each problem to the machine, as spins."""

    def __init__(self, qpu: AcmeQpu) -> None:
        self._qpu = qpu

    @property
    def parameters(self) -> dict[str, list[str]]:
        """The keywords :meth:`sample` takes."""
        return {"num_reads": []}

    @property
    def properties(self) -> dict[str, str]:
        """Which QPU this is."""
        return {"qpu": self._qpu.name}

    def sample(self, bqm: BinaryQuadraticModel, *, num_reads: int = 1) -> SampleSet:
        """Run a problem and wait; energies are those of the problem as it is given."""
        spins = bqm.change_vartype(Vartype.SPIN, inplace=False)
        labels = [*spins.variables]
        place = {label: number for number, label in enumerate(labels)}
        fields: list[JSON] = [float(spins.linear[label]) for label in labels]
        couplings: list[JSON] = [
            [place[u], place[v], float(bias)]
            for (u, v), bias in spins.quadratic.items()
        ]
        body: dict[str, JSON] = {"h": fields, "J": couplings, "shots": num_reads}
        run = self._qpu.ask("POST", f"/booking/{self._qpu.booking}/run", body).json()
        while (told := self._qpu.ask("GET", f"/run/{run['run']}").json())["phase"] in (
            "waiting",
            "running",
        ):
            time.sleep(POLL_SECONDS)
        micros, rows = told.get("micros"), told.get("spins")
        if told["phase"] != "done" or not isinstance(micros, int | float):
            raise QpuError(f"QPU {self._qpu.name!r}: run {run['run']} {told['phase']}")
        samples: SampleSet = SampleSet.from_samples_bqm((rows, labels), spins)  # type: ignore[no-untyped-call]
        samples.change_vartype(bqm.vartype, inplace=True)  # type: ignore[no-untyped-call]
        timing = {"qpu_seconds": micros / MICROSECONDS}
        samples.info.update(sampler="acme", qpu=self._qpu.name, timing=timing)
        return samples
