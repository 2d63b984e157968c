"""When a job will run: the device's timing model, corrected by what was observed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping

from sf_quantum.service.line import Work
from sf_quantum.service.records import CLASSES, RANKS, JobClass, Kind

# what a job costs beside its time on the device: reading and writing it. Also keeps the
# ratio defined where the device does not wait at all (time scale 0).
HOST_SECONDS = 0.005
# an observation counts half as much after 34 more
DECAY = 0.98
# over how many jobs the arrivals are averaged, and how many are to be believed in none
MEMORY = 100
DOUBTS = 10
# the most of the device's time that is expected to go to those who are yet to come
MOST_LOAD = 0.75


class Pace:
    """How long jobs of a kind really take, as a ratio to what the model says.

    The ratio is that of the sums, so that the time of many jobs in a row, long and
    short, is right, which is what an ETA adds up.
    """

    def __init__(self) -> None:
        self._modelled: defaultdict[Kind, float] = defaultdict(float)
        self._observed: defaultdict[Kind, float] = defaultdict(float)

    def observe(self, kind: Kind, modelled: float, observed: float) -> None:
        """Learn from a job that completed.

        :param modelled: seconds on the device, scaled
        :param observed: from when the job was taken until the next one could be
        """
        self._modelled[kind] = self._modelled[kind] * DECAY + modelled + HOST_SECONDS
        self._observed[kind] = self._observed[kind] * DECAY + observed

    def seconds(self, works: Mapping[Kind, Work]) -> float:
        """Expect how long some jobs take, one after the other."""
        return sum(
            self._ratio(kind) * (work.seconds + work.jobs * HOST_SECONDS)
            for kind, work in works.items()
        )

    def job_seconds(self, kind: Kind, modelled: float) -> float:
        """Expect how long one job takes."""
        return self.seconds({kind: Work(1, modelled)})

    def _ratio(self, kind: Kind) -> float:
        modelled = self._modelled[kind]
        return self._observed[kind] / modelled if modelled else 1.0


class Inflow:
    """How many jobs of each class come while one runs, and what they do to the others.

    Who waits lets those of a higher class pass who are yet to come. Nobody knows how many
    will be; how many came lately is a guess as long as the device keeps up with them. More
    than it can do are a batch, and after a batch nothing needs to follow.
    """

    def __init__(self) -> None:
        self._came: Counter[JobClass] = Counter()
        self._jobs = 0.0
        self._times: defaultdict[JobClass, float] = defaultdict(float)
        self._weight = DOUBTS / MEMORY

    def came(self, job_class: JobClass) -> None:
        """Count a job that came while another one ran."""
        self._came[job_class] += 1

    def next(self) -> None:
        """Count the end of a job that ran."""
        self._jobs += (self._came.total() - self._jobs) / MEMORY
        for name in CLASSES:
            # whether any came, since a batch is to leave no trace once it is over
            came = self._came[name] > 0
            self._times[name] += (came - self._times[name]) / MEMORY
        self._weight += (1 - self._weight) / MEMORY
        self._came.clear()

    def factor(self, job_class: JobClass) -> float:
        """Tell by what the time of the jobs before one is to be multiplied."""
        # how many come on average if so often none comes (Poisson)
        rates = [-math.log1p(-min(0.9, self._times[n] / self._weight)) for n in CLASSES]
        load = sum(rates[: RANKS[job_class]])
        if job_class != CLASSES[0]:
            # each of those pre-empts a job, half of which runs again
            load += rates[0] / 2
        keeps_up = max(0.0, min(1.0, 2 - self._jobs / self._weight))
        return 1 / (1 - keeps_up * min(load, MOST_LOAD))
