"""How long jobs take: the device's timing model, corrected by what was observed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from sf_quantum.service.domain.jobs import Kind
from sf_quantum.service.scheduling.work import Work

# what a job costs beside its time on the device: reading and writing it. Also keeps the
# ratio defined where the device does not wait at all (time scale 0).
HOST_SECONDS = 0.005
# an observation counts half as much after 34 more
DECAY = 0.98


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
