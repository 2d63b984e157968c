"""The configuration of a real QPU."""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, GetPydanticSchema
from pydantic_core import PydanticCustomError, core_schema

from sf_quantum import qpu as clients
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu import Qpu, selection
from sf_quantum.service.domain.settings import NotNegative, Positive
from sf_quantum.validation import Section

Pause: TypeAlias = Annotated[float, Field(gt=0, le=3600)]
# keys whose values would be credentials, unless they name a file
_CREDENTIAL = re.compile(
    r"(password|passwd|passphrase|secret|token|credential|api_?key|private_?key)s?$",
    re.IGNORECASE,
)
# A status is outdated after this time plus two refresh intervals: a single request may
# take this long.
STALE_SECONDS = 30.0


def _config(content: JSON) -> dict[str, JSON]:
    """Reject keys whose values may be credentials."""
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise PydanticCustomError("dict_type", "expected keys and values")
    for key, value in content.items():
        # messages do not contain values
        what = "holds a credential" if _CREDENTIAL.search(key) else ""
        if isinstance(value, str) and _has_more(key, value):
            what = "has a user or a query, which may be a credential"
        if what:
            raise ValueError(
                f"{key} {what}: name a file that has it instead "
                "(tokenFile, or qrmiConfig with an entry for this QPU)"
            )
    return content


def _has_more(key: str, value: str) -> bool:
    """Return whether a URL has a user, a query or a fragment."""
    is_url = (key == "url" or "://" in value) and not value.startswith("unix:")
    return is_url and not {*"@?#"}.isdisjoint(value)


class QpuSettings(Section):
    """The configuration of a real QPU.

    :param type: the device is a real QPU, driven through its vendor's interface
    :param qpu: type of the QPU, such as ``dwave``: a value of the key ``type`` in the
        ``config`` of an ``sfq.rest`` deployment, or in an entry of ``qrmi_config.json``
    :param name: name of the QPU; two services of one user on one machine need different
        names for the same QPU
    :param config: the keys that this type of QPU needs, as in a deployment's ``config``; or
        ``qrmiConfig``, the path of the file that describes the site's QPUs. Credentials must
        be in files that these keys name
    :param cost_per_second: price of QPU time, in the site's own unit; by default the
        vendor's price, if it reports one
    :param idle_seconds: time without jobs after which the vendor's lease is released
    :param refresh_seconds: pause between two queries for the QPU's status
    :param describe_seconds: pause between two queries for the QPU's size, limits and
        calibration
    :param poll_seconds: longest pause between two queries for the state of a job; shorter
        near the job's expected end
    :param expected_seconds: expected QPU time of a job, until the vendor's timing or past
        jobs are known
    :param late_seconds: time within which a submission without a reply may still arrive;
        the submission is not repeated earlier
    :param longest_seconds: time after which a running job or slice is cancelled and fails;
        ``None`` sets no limit
    :param give_up_seconds: time after which the service abandons a job that should end but does
        not, or about which requests fail while other requests succeed; the job may continue
        at the vendor
    :param ahead: number of jobs that wait in the vendor's queue while one runs
    """

    type: Literal["qpu"] = "qpu"
    qpu: str
    name: Annotated[str, Field(min_length=1)] = "qpu"
    config: Annotated[
        dict[str, JSON],
        # pydantic cannot build a schema of the recursive type
        GetPydanticSchema(
            lambda *_: core_schema.no_info_plain_validator_function(_config)
        ),
    ] = Field(default_factory=dict)
    cost_per_second: NotNegative | None = None
    idle_seconds: Positive = 60.0
    refresh_seconds: Pause = 1.0
    describe_seconds: Pause = 60.0
    poll_seconds: Pause = 1.0
    expected_seconds: Positive = 10.0
    late_seconds: Pause = 10.0
    longest_seconds: Positive | None = None
    give_up_seconds: Pause = 60.0
    ahead: Annotated[int, Field(ge=0, le=100)] = 1

    @property
    def stale_seconds(self) -> float:
        """Age from which a status no longer shows whether the QPU is online."""
        return STALE_SECONDS + 2 * self.refresh_seconds

    def client(self) -> Qpu:
        """Create the driver's side of the QPU's client, with the present credentials.

        :raises InputError: if a key of ``config`` is wrong, or the kind cannot be used
        """
        kind = clients.load(self.qpu)
        problem = kind.problem()
        if problem is None and not kind.kinds:
            problem = kind.sampler_problem()
        if problem is not None:
            raise InputError(f"QPU type {self.qpu!r}: {problem}")
        return selection.client(self.qpu, self.name, self.config)
