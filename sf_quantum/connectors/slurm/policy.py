"""The key ``allocation``: how nodes are taken and given back.

Its schema, ``schemas/slurm.json``, says what each of its keys means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from sf_quantum.files import JSON


@dataclass(frozen=True)
class EachStep:
    """``per-step``: each job is a submission of its own."""


@dataclass(frozen=True, init=False)
class Reserve:
    """``reserved``: one allocation for the run; services that say the same share it.

    :param reserve: the services, and how many jobs of each at once
    :param release: ``after`` which step the quantum part is given back, after how many
        ``times``
    :param idle: seconds without a quantum job after which it is given back
    """

    places: tuple[tuple[str, int], ...]
    release_after: str | None
    release_times: int
    idle: float | None

    def __init__(
        self,
        reserve: Sequence[str] | Mapping[str, int],
        release: Mapping[str, str | int] | None = None,
        idle: float | None = None,
    ) -> None:
        counts = reserve if isinstance(reserve, Mapping) else Counter(reserve)
        release = release or {}
        values = {
            "places": tuple(counts.items()),
            "release_after": str(release["after"]) if release else None,
            "release_times": int(release.get("times", 1)),
            "idle": idle,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def services(self) -> list[str]:
        """Those whose nodes are reserved."""
        return [name for name, _ in self.places]


class Elastic:
    """``elastic``: allocations of the service's own shape, kept between jobs.

    :param keep: how many are kept although they are idle
    :param max: how many there are at most; None for as many as there are jobs
    :param idle: seconds without a job after which one is given back
    :param patience: seconds in the queue after which fewer nodes will do
    :param ahead: nodes are asked for while a quantum step runs; ``dependent`` has Slurm
        itself wait for the step's end, where the step is a job of Slurm's
    """

    def __init__(
        self,
        keep: int = 0,
        max: int | None = None,
        idle: float = 5.0,
        patience: float = 60.0,
        ahead: bool | Literal["dependent"] = False,
    ) -> None:
        self.keep = keep
        self.maximum = max
        self.idle = idle
        self.patience = patience
        self.ahead = bool(ahead)
        self.dependent = ahead == "dependent"


Policy: TypeAlias = EachStep | Reserve | Elastic
_STRATEGIES: dict[JSON, Callable[..., Policy]] = {
    "per-step": EachStep,
    "reserved": Reserve,
    "elastic": Elastic,
}


def policy(value: str | Mapping[str, JSON]) -> Policy:
    """Read the key, which its schema has checked.

    :param value: the strategy's name, or a mapping with ``strategy``
    :returns: what it says
    """
    config = {"strategy": value} if isinstance(value, str) else dict(value)
    return _STRATEGIES[config.pop("strategy")](**config)
