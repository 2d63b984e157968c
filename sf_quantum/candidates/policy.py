"""What the filter's configuration says of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal, TypeAlias, cast

from sf_quantum.files import JSON

Prefer: TypeAlias = Literal["quantum", "classical", "earliest"]


@dataclass(frozen=True)
class Budget:
    """What may be spent; ``None`` sets no limit.

    :param seconds: of QPU time
    :param cost: in the unit of the costs per second
    """

    seconds: float | None = None
    cost: float | None = None

    @classmethod
    def read(cls, config: JSON) -> Budget:
        """Read the key ``budget``."""
        told = config if isinstance(config, dict) else {}
        return cls(_number(told, "qpuSeconds"), _number(told, "cost"))


@dataclass(frozen=True)
class Policy:
    """How a step is treated; see the schema for the meaning of the keys.

    :param run: what all steps of the filter together may spend in a run
    :param step: what this one may spend of it
    :param variables: the input that gives the number of variables
    :param hints: for the QPU's service
    """

    prefer: Prefer = "quantum"
    max_wait: float | None = None
    max_variables: int | None = None
    min_variables: int | None = None
    variables: str | None = None
    run: Budget = field(default_factory=Budget)
    step: Budget = field(default_factory=Budget)
    fallback: bool = True
    expected_seconds: float | None = None
    hints: Mapping[str, JSON] = field(default_factory=dict)


class Policies:
    """The policies of a filter.

    :param config: its configuration, which is everybody's but for what ``steps`` says
    """

    def __init__(self, config: Mapping[str, JSON]) -> None:
        steps = config.get("steps")
        self._config = dict(config)
        self._steps = steps if isinstance(steps, dict) else {}

    def of(self, step: str) -> Policy:
        """The policy of a step: what is said of it, or of the nearest one above it."""
        own: dict[str, JSON] = {}
        above = [name for name in self._steps if _is_below(step, name)]
        for name in sorted(above, key=len):
            told = self._steps[name]
            if isinstance(told, dict):
                own |= {**told, "budget": _merged(own, told)}
        return _policy({**self._config, **own}, self._config, own)


def _merged(above: Mapping[str, JSON], own: Mapping[str, JSON]) -> JSON:
    """The budgets of a step and of those above it, limit by limit."""
    budgets = (above.get("budget"), own.get("budget"))
    return {k: v for told in budgets if isinstance(told, dict) for k, v in told.items()}


def _policy(
    config: Mapping[str, JSON], all_: Mapping[str, JSON], own: Mapping[str, JSON]
) -> Policy:
    variables = config.get("variables")
    hints = {key: config.get(key) for key in ("expectedSeconds", "pattern")}
    return Policy(
        prefer=cast("Prefer", config.get("prefer") or "quantum"),
        max_wait=_number(config, "maxWait"),
        max_variables=_whole(config, "maxVariables"),
        min_variables=_whole(config, "minVariables"),
        variables=variables if isinstance(variables, str) else None,
        run=Budget.read(all_.get("budget")),
        step=Budget.read(own.get("budget")),
        fallback=config.get("onFailure") != "fail",
        expected_seconds=_number(config, "expectedSeconds"),
        hints={key: value for key, value in hints.items() if value is not None},
    )


def _is_below(step: str, top: str) -> bool:
    return PurePosixPath(step).is_relative_to(top)


def _number(config: Mapping[str, JSON], key: str) -> float | None:
    value = config.get(key)
    return float(value) if isinstance(value, int | float) else None


def _whole(config: Mapping[str, JSON], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) else None
