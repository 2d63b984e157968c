"""Expected run times on a device: a set-up time plus a rate times the modelled time."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import NamedTuple

from sf_quantum.service.domain.jobs import Kind
from sf_quantum.service.scheduling.work import Work

# set-up time until the first job is observed: the time to read and write a job
HOST_SECONDS = 0.005
# number of observations that are kept for each size group
LATEST = 32
# Up to MAX_LEFT_OUT of the longest observations of a size group are left out if they took
# more than LONG times as long as usual: a process had to start. From MANY observations on,
# the factor is LONG_OF_MANY, since run times vary on a busy machine.
LONG, LONG_OF_MANY, MAX_LEFT_OUT = 1.25, 2.0, 3
MANY = 5
# BUSY: largest factor by which a busy machine slows jobs down. NOT_BRIEF: shortest modelled
# run time in seconds of a job that is slow for this reason; a shorter job may be slow because
# a process had to start.
BUSY, NOT_BRIEF = 8.0, 0.01
# largest weight of a size group, and factor of the weight for each later job of another
# group; after 34 such jobs, the weight has halved
MAX_WEIGHT, DECAY = 8, 0.98
# times below this are treated as equal
NEGLIGIBLE_SECONDS = 1e-3
# plausible set-up time; a process takes some tenths of a second to start
PLAUSIBLE_SETUP_SECONDS = 0.2
# weights of the prior; an observation that confirms an earlier observation has weight 1
SETUP_WEIGHT, RATE_WEIGHT, LARGE_RATE_WEIGHT = 0.4, 0.3, 0.2


class Line(NamedTuple):
    """The time of a job: ``setup_seconds + rate * modelled``."""

    setup_seconds: float = HOST_SECONDS
    rate: float = 1.0

    def seconds(self, modelled: float, jobs: int = 1) -> float:
        return jobs * self.setup_seconds + self.rate * modelled

    def implausibility(self, largest: float) -> float:
        """Return the penalty of the prior for the line, on the scale of :meth:`Run.error`.

        :param largest: modelled run time of the largest jobs. The prior of the rate weighs
            more if it is short: such jobs show the start of a process rather than the rate
        """
        setup_deviation = (
            abs(self.setup_seconds - HOST_SECONDS) / PLAUSIBLE_SETUP_SECONDS
        )
        rate_deviation = abs(math.log(self.rate))
        rate_penalty = (
            RATE_WEIGHT * rate_deviation + LARGE_RATE_WEIGHT * rate_deviation**2
        )
        start_share = PLAUSIBLE_SETUP_SECONDS / max(largest, NEGLIGIBLE_SECONDS)
        return SETUP_WEIGHT * math.log1p(setup_deviation) + rate_penalty * (
            1 + start_share
        )


class Run(NamedTuple):
    """A job that has completed, or the mean of several jobs.

    :param modelled: run time by the model
    :param observed: seconds until the next job could start
    :param weight: number of observations that confirm an earlier observation
    """

    modelled: float
    observed: float
    weight: float = 1.0

    @property
    def ratio(self) -> float:
        return self.observed / (self.modelled + HOST_SECONDS)

    def excess(self, usual: Run) -> float:
        """Return the observed time as a multiple of the usual time.

        If the job is larger than the usual job, the usual time is scaled up to its size.
        """
        size_ratio = (self.modelled + HOST_SECONDS) / (usual.modelled + HOST_SECONDS)
        usual_seconds = max(usual.observed, NEGLIGIBLE_SECONDS) * max(1.0, size_ratio)
        return max(self.observed, NEGLIGIBLE_SECONDS) / usual_seconds

    def error(self, line: Line) -> float:
        """Return the difference between the logarithms of observed and expected time."""
        expected = line.seconds(self.modelled) + NEGLIGIBLE_SECONDS
        return abs(math.log((self.observed + NEGLIGIBLE_SECONDS) / expected))


class Pace:
    """Learns the run times of each kind of job.

    Jobs are grouped by their modelled times, in powers of four. Each size group yields one
    point: the mean of its jobs without unusually long and short jobs. Thus neither the start
    of a process nor a busy machine changes the expected times of other jobs, and a thousand
    small jobs do not hide a large job. A point is used once two jobs of its group agree, or
    another job of the group has taken even longer. The expected times are on a line, which
    is fitted to the points with the least absolute deviations of the logarithms: small jobs
    determine the line's set-up time, and large jobs its rate. The rate is in the range of
    the points' rates and 1, the rate of the device's model.
    """

    def __init__(self) -> None:
        self._groups: defaultdict[Kind, dict[int, _SizeGroup]] = defaultdict(dict)
        self._jobs: defaultdict[Kind, int] = defaultdict(int)
        self._lines: dict[Kind, Line] = {}

    def observe(self, kind: Kind, modelled: float, observed: float) -> None:
        """Add a completed job.

        :param modelled: run time by the model
        :param observed: seconds until the next job could start
        """
        self._jobs[kind] += 1
        # group 0: jobs with a modelled time below two set-up times
        number = max(0, math.frexp(modelled / HOST_SECONDS)[1]) // 2
        group = self._groups[kind].setdefault(number, _SizeGroup())
        group.add(Run(modelled, observed), self._jobs[kind])
        self._lines.pop(kind, None)

    def seconds(self, work_by_kind: Mapping[Kind, Work]) -> float:
        return sum(
            self._line(kind).seconds(work.seconds, work.jobs)
            for kind, work in work_by_kind.items()
        )

    def job_seconds(self, kind: Kind, modelled: float) -> float:
        return self._line(kind).seconds(modelled)

    def _line(self, kind: Kind) -> Line:
        if (line := self._lines.get(kind)) is None:
            job_count = self._jobs[kind]
            points = [group.mean(job_count) for group in self._groups[kind].values()]
            self._lines[kind] = line = _fit([point for point in points if point.weight])
        return line


class _SizeGroup:
    """The latest jobs of one size group."""

    def __init__(self) -> None:
        self._runs: deque[Run] = deque(maxlen=LATEST)
        self._last_number = 0

    def add(self, run: Run, number: int) -> None:
        self._runs.append(run)
        self._last_number = number

    def mean(self, number: int) -> Run:
        """Return the mean of the jobs that took about the usual time.

        :param number: number of jobs of all sizes so far
        """
        ratios = sorted(self._runs, key=lambda run: run.ratio)
        # Of up to three jobs, two may have been unusually long, so the shortest is the usual
        # job; if the two longest of three agree, the middle job is the usual job.
        index = max(0, min((len(ratios) - 1) // 2, len(ratios) - 3))
        if len(ratios) == 3 and ratios[2].ratio <= LONG * ratios[1].ratio:
            index = 1
        usual = ratios[index]
        long = LONG if len(ratios) < MANY else LONG_OF_MANY
        kept = sorted(self._runs, key=lambda run: run.excess(usual))
        for _ in range(min(MAX_LEFT_OUT, len(kept) - 1)):
            if kept[-1].excess(usual) > long:
                kept.pop()
        kept = [run for run in kept if run.excess(usual) * long >= 1]
        # Jobs that were left out also confirm the mean: jobs take at least this long. This
        # does not hold for two jobs if even the shorter one took longer than a busy machine
        # explains, since both may be unusual.
        both_unusual = len(ratios) == 2 and not (
            usual.modelled >= NOT_BRIEF and usual.ratio <= BUSY
        )
        confirmed = min(len(kept if both_unusual else ratios) - 1, MAX_WEIGHT)
        weight = confirmed * DECAY ** (number - self._last_number)
        modelled = fmean(run.modelled for run in kept)
        observed = fmean(run.observed for run in kept)
        # a confirmed point keeps some weight until other points outweigh it
        return Run(modelled, observed, max(weight, min(confirmed, 1)))


def _fit(points: Sequence[Run]) -> Line:
    largest = max((point.modelled for point in points), default=0.0)

    def cost(line: Line) -> float:
        errors = sum(point.weight * point.error(line) for point in points)
        return errors + line.implausibility(largest)

    return min(_candidate_lines(points), key=cost)


def _candidate_lines(points: Sequence[Run]) -> Iterator[Line]:
    """Yield the lines through two points, or through one point and the prior.

    One of these lines has the least absolute deviations from the points (Bloomfield and
    Steiger, Least Absolute Deviations, Birkhäuser, 1983, p. 6). For deviations of
    logarithms, as here, one of the lines is close to the best line.
    """
    yield Line()
    ratios = [point.observed / point.modelled for point in points if point.modelled > 0]
    lowest_rate, highest_rate = min([1.0, *ratios]), max([1.0, *ratios])
    lines = [
        Line(point.observed - rate * point.modelled, rate)
        for point in points
        for rate in (1.0, lowest_rate)
    ]
    for point, other in combinations([Run(0.0, HOST_SECONDS), *points], 2):
        if other.modelled != point.modelled:
            rise = other.observed - point.observed
            rate = rise / (other.modelled - point.modelled)
            lines.append(Line(point.observed - rate * point.modelled, rate))
    for line in lines:
        if (
            line.setup_seconds >= 0
            and line.rate > 0
            and lowest_rate <= line.rate <= highest_rate
        ):
            yield line
