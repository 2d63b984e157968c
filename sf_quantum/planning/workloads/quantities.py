"""The numbers of a workload file, within bounds so that every simulation ends."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field

# about 30 years, after which a floating-point clock still resolves a microsecond
LONGEST_SECONDS = 1e9
#: maximum number of tasks and QPU jobs of all applications of a workload, and maximum number
#: of others' jobs in a repetition
MOST_JOBS = 1_000_000
_SHORTEST_INTERVAL = 0.1

Count: TypeAlias = Annotated[int, Field(ge=1, le=MOST_JOBS)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, le=LONGEST_SECONDS)]
#: Time that an activity takes, in seconds.
Duration: TypeAlias = Annotated[float, Field(ge=1e-9, le=LONGEST_SECONDS)]
#: Time between two occurrences of a repeated event, in seconds.
Period: TypeAlias = Annotated[float, Field(ge=1, le=LONGEST_SECONDS)]
#: standard deviation relative to the mean
Spread: TypeAlias = Annotated[float, Field(ge=0, le=1000)]
PerHour: TypeAlias = Annotated[float, Field(ge=1e-6, le=MOST_JOBS)]
#: a price or a power
Amount: TypeAlias = Annotated[float, Field(ge=0, le=1e9)]
#: Ratio of an estimate to the estimated value.
Margin: TypeAlias = Annotated[float, Field(ge=1, le=1000)]


def _interval(seconds: float) -> float:
    if 0 < seconds < _SHORTEST_INTERVAL:
        raise ValueError(f"expected 0, or {_SHORTEST_INTERVAL:g} or more")
    return seconds


#: Time between passes of a scheduler; 0 for a pass after every event, infinite for no passes.
Interval: TypeAlias = Annotated[
    float, Field(ge=0, allow_inf_nan=True), AfterValidator(_interval)
]
