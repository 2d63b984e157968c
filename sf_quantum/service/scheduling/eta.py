"""ETAs: how long pending jobs take, and how many more go before a job meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sf_quantum.service.domain.jobs import CLASSES, JobClass, Kind
from sf_quantum.service.scheduling.work import Clock, Work

# what a job costs beside its time on the device: reading and writing it. Also keeps the
# ratio defined where the device does not wait at all (time scale 0).
HOST_SECONDS = 0.005
# an observed run time counts half as much after 34 more
DECAY = 0.98
# an observed attempt counts half as much after 69 more
MEMORY = 0.99
# attempts without an arrival that are assumed before any are observed
PRIOR_ATTEMPTS = 3
# the largest part of the device's time that is expected to go to later arrivals
MAX_LOAD = 0.9
# a busy period is expected to last half as long again as it has so far (Gott, Nature 363,
# 1993, p. 315)
LASTS_AGAIN = 0.5
# after a time without an arrival, fewer than three per such a time are to be expected, with
# 95 % confidence (Hanley and Lippman-Hand, JAMA 249, 1983, p. 1743)
RULE_OF_THREE = 3


class Pace:
    """How long jobs of a kind really take, as a ratio to what the model says.

    The ratio is that of the sums, so that the total of many jobs, long and short, is
    right, which is what an ETA adds up.
    """

    def __init__(self) -> None:
        self._modelled: defaultdict[Kind, float] = defaultdict(float)
        self._observed: defaultdict[Kind, float] = defaultdict(float)

    def observe(self, kind: Kind, modelled: float, observed: float) -> None:
        """Learn from a completed job.

        :param modelled: seconds on the device, times the time scale
        :param observed: seconds from when the job was taken until the next one could be
        """
        self._modelled[kind] = self._modelled[kind] * DECAY + modelled + HOST_SECONDS
        self._observed[kind] = self._observed[kind] * DECAY + observed

    def seconds(self, works: Mapping[Kind, Work]) -> float:
        """Estimate how long jobs take one after the other."""
        return sum(
            self._ratio(kind) * (work.seconds + work.jobs * HOST_SECONDS)
            for kind, work in works.items()
        )

    def job_seconds(self, kind: Kind, modelled: float) -> float:
        """Estimate how long one job takes."""
        return self.seconds({kind: Work(1, modelled)})

    def _ratio(self, kind: Kind) -> float:
        modelled = self._modelled[kind]
        return self._observed[kind] / modelled if modelled else 1.0


@dataclass
class _Load:
    """Sums over attempts, the older ones counting less.

    :param jobs: attempts during which a job of the class arrived
    :param seconds: of the first such job of each
    """

    jobs: float = 0.0
    seconds: float = 0.0


class Arrivals:
    """The jobs that are yet to arrive and to go before one that is pending.

    The load of a class is measured as the seconds of the first of its jobs to arrive
    during each attempt, as a part of the attempts' seconds: a batch, which does not mean
    that more follows, counts once. The estimate is within three percentage points of one
    from queueing theory on the streams of ``tests/benchmarks/eta.py``.

    :param clock: seconds, monotonic
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loads = {name: _Load() for name in CLASSES}
        self._attempts = self._seconds = 0.0
        self._began = 0.0
        # the seconds of the first job of each class during the attempt on the device
        self._arrived: dict[JobClass, float] | None = None
        self._busy_since = self._last = clock()

    def submitted(self, job_class: JobClass, seconds: float) -> None:
        """Count a job that becomes pending.

        :param seconds: its expected time
        """
        self._last = self._clock()
        if self._arrived is None:
            self._busy_since = self._last
        else:
            self._arrived.setdefault(job_class, seconds)

    def began(self) -> None:
        """Note that an attempt begins on the device."""
        self._began, self._arrived = self._clock(), {}

    def ended(self) -> None:
        """Note that the attempt has ended, whatever its outcome."""
        arrived, self._arrived = self._arrived, None
        if arrived is None:
            return
        self._attempts = self._attempts * MEMORY + 1
        self._seconds = self._seconds * MEMORY + self._clock() - self._began
        for name, load in self._loads.items():
            load.jobs = load.jobs * MEMORY + (name in arrived)
            load.seconds = load.seconds * MEMORY + arrived.get(name, 0.0)

    def wait(self, seconds: float, passing: Collection[JobClass]) -> float:
        """Estimate how long a job waits, later arrivals included.

        :param seconds: of what is before it now
        :param passing: the classes whose later arrivals go before it
        """
        jobs = sum(self._loads[name].jobs for name in passing)
        if not (jobs and self._seconds):
            return seconds
        watched = self._seconds * (1 + PRIOR_ATTEMPTS / self._attempts)
        arriving = sum(self._loads[name].seconds for name in passing)
        load = arriving / watched * self._persistence(watched)
        capped = min(load, MAX_LOAD)
        more = min(
            seconds * capped / (1 - capped),
            load * LASTS_AGAIN * (self._clock() - self._busy_since),
        )
        # one job less than the mean: how many arrive has a long tail
        return seconds + max(0.0, more - arriving / jobs)

    def _persistence(self, watched: float) -> float:
        """Return the part of the load that goes on, by the time since the last arrival."""
        rate = sum(load.jobs for load in self._loads.values()) / watched
        missed = rate * (self._clock() - self._last)
        return min(1.0, RULE_OF_THREE / missed) if missed else 1.0
