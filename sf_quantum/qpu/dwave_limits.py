"""What a D-Wave solver says it takes, held against what is asked of it."""

from __future__ import annotations

from collections.abc import Mapping

from sf_quantum.errors import InputError
from sf_quantum.files import JSON


def check_fits(asked: Mapping[str, JSON], properties: Mapping[str, JSON]) -> None:
    """Refuse what the solver would refuse, before anything is embedded or sent.

    :param asked: parameters; ``num_reads`` and ``annealing_time`` (microseconds) have the
        solver's defaults
    :param properties: of the solver, as SAPI tells them
    :raises InputError: naming the parameter and the solver's range
    """
    reads = _number(asked, "num_reads") or 1
    time = _number(asked, "annealing_time")
    time = _number(properties, "default_annealing_time") if time is None else time
    between = _number(properties, "default_readout_thermalization") or 0
    before = _number(properties, "default_programming_thermalization") or 0
    wanted = {
        "num_reads": reads,
        "annealing_time": time,
        # as D-Wave reckons it (Solver Properties: problem_run_duration_range)
        "problem_run_duration": reads * ((time or 0) + between) + before,
    }
    for name, value in wanted.items():
        match properties.get(f"{name}_range"):
            case [int() | float() as least, int() | float() as most] if (
                value is not None and not least <= value <= most
            ):
                takes = f"the solver takes {least:g} to {most:g}"
                raise InputError(f"{name}: {value:g} is out of range, {takes}")


def _number(told: Mapping[str, JSON], key: str) -> float | None:
    value = told.get(key)
    return value if isinstance(value, int | float) else None
