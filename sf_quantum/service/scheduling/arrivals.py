"""Those who are yet to come: how many will pass a job that waits, and for how long."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sf_quantum.service.domain.jobs import CLASSES, RANKS, JobClass

# what was seen counts less with each job that follows, by about 1 in so many
MEMORY = 100
# jobs during which nobody is taken to have come, before any were seen
DOUBTS = 10
# the most of the device's time that is expected to go to those who are yet to come
MOST_LOAD = 0.9
# more than the device can do comes for half as long again as it has come for so far: it
# has to end some day, and nobody knows the day (Gott, Nature 363, 1993, p. 315)
AGAIN = 0.5
# where nobody came for a while, fewer than so many come in such a while, with 95 %
# confidence (Hanley and Lippman-Hand, JAMA 249, 1983, p. 1743)
FEWER = 3
# of so many the mean is as good as the whole distribution
MANY = 30


@dataclass
class _Seen:
    """What was seen of a class, each sum with the older part counting less.

    :param watched: seconds of attempts, until somebody of the class came
    :param came: attempts during which somebody came
    """

    watched: float = 0.0
    came: float = 0.0
    jobs: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0

    def learn(self, seconds: float) -> None:
        keep = 1 - 1 / MEMORY
        self.jobs = self.jobs * keep + 1
        self.seconds = self.seconds * keep + seconds
        self.squares = self.squares * keep + seconds**2

    def watch(self, seconds: float, came: bool) -> None:
        keep = 1 - 1 / MEMORY
        self.watched = self.watched * keep + seconds
        self.came = self.came * keep + came


@dataclass
class _Attempt:
    """The time of one attempt on the device, and who came in it."""

    began: float
    work: float = 0.0
    first: dict[JobClass, float] = field(default_factory=dict)


class Arrivals:
    """How often jobs of each class come, how long they take, and what both do to others.

    Who waits lets those of a higher class pass who are yet to come: the work before a job
    is stretched as in the queue M/G/1 with pre-emptive priorities (Kleinrock, Queueing
    Systems, vol. 2, 1976, chapter 3: the delay cycle), where a job that is pre-empted
    begins again. A class's rate is that of the first of it to come during each attempt,
    so that a batch, which says nothing of what follows it, counts once.

    :param clock: seconds, monotonic
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen = {name: _Seen() for name in CLASSES}
        self._attempt: _Attempt | None = None
        self._busy_since = self._last = clock()
        # of all attempts: their number, seconds, and the seconds of work that came
        self._attempts = self._seconds = self._work = 0.0

    def came(self, job_class: JobClass, seconds: float) -> None:
        """Count a job that joins the line.

        :param seconds: it is expected to take
        """
        now = self._last = self._clock()
        self._seen[job_class].learn(seconds)
        if self._attempt is None:
            self._busy_since = now
        else:
            self._attempt.work += seconds
            self._attempt.first.setdefault(job_class, now)

    def began(self) -> None:
        """Take note that an attempt begins."""
        self._attempt = _Attempt(self._clock())

    def ended(self) -> None:
        """Take note that the attempt has ended, one way or another."""
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        now, keep = self._clock(), 1 - 1 / MEMORY
        self._attempts = self._attempts * keep + 1
        self._seconds = self._seconds * keep + now - attempt.began
        self._work = self._work * keep + attempt.work
        for name, seen in self._seen.items():
            until = attempt.first.get(name, now)
            seen.watch(until - attempt.began, name in attempt.first)

    def wait(
        self,
        job_class: JobClass,
        work: float,
        passing: Sequence[JobClass] | None = None,
    ) -> float:
        """Expect how long a job of a class waits.

        :param work: seconds of what is before it now
        :param passing: the classes that go before it; by default all that are higher
        """
        if not self._attempts:
            return work
        doubted = DOUBTS * self._seconds / self._attempts
        rates = self._rates(doubted)
        if passing is None:
            passing = CLASSES[: RANKS[job_class]]
        rate = sum(rates[name] for name in passing)
        load = sum(rates[name] * self._costs(name, job_class) for name in passing)
        if not load:
            return work
        waited = stretched(work, rate, min(load, MOST_LOAD) / rate)
        if self._work <= self._seconds + doubted:
            return waited
        # more comes than the device can do
        lasts = AGAIN * (self._clock() - self._busy_since)
        return min(waited, work + load * lasts)

    def _rates(self, doubted: float) -> dict[JobClass, float]:
        """Expect how many of each class come per second.

        :param doubted: seconds during which nobody is taken to have come
        """
        rates = {
            name: seen.came / (seen.watched + doubted)
            for name, seen in self._seen.items()
        }
        would_have_come = (self._clock() - self._last) * sum(rates.values())
        ebbing = min(1.0, FEWER / would_have_come) if would_have_come else 1.0
        return {name: rate * ebbing for name, rate in rates.items()}

    def _costs(self, name: JobClass, passed: JobClass) -> float:
        """Expect the seconds that one who comes takes from those of a lower class."""
        seen = self._seen[name]
        seconds = seen.seconds / seen.jobs if seen.jobs else 0.0
        if name != CLASSES[0]:
            return seconds
        # the job it pre-empts has done half its time on average, a long one more (the
        # mean age in a renewal process), and does it again
        lower = [self._seen[one] for one in CLASSES[1 : RANKS[passed] + 1]]
        time = sum(one.seconds for one in lower)
        return seconds + (sum(one.squares for one in lower) / time / 2 if time else 0.0)


def stretched(work: float, rate: float, each: float) -> float:
    """Expect how long some work takes with all those who come meanwhile and go first.

    How many come, also during each other's time, has the Borel-Tanner distribution
    (Tanner, Biometrika 48, 1961, p. 222; here of a real parameter: Consul and Jain,
    Technometrics 15, 1973, p. 791). Of the times it may take, this one has the least mean
    relative error, |told - true| / true: their median, each weighted by its reciprocal.

    :param work: in seconds
    :param rate: of those who come, per second
    :param each: seconds that one of them takes; ``rate * each`` is below 1
    """
    expected, load = rate * work, rate * each
    if expected <= 0:
        return work
    if expected / (1 - load) > MANY:
        return work / (1 - load)
    times, weights, left = list[float](), list[float](), 1.0
    while left > 1e-3 and len(times) < 10 * MANY:
        k = len(times)
        theta = expected + k * load
        logarithm = math.log(expected) + (k - 1) * math.log(theta) - theta
        probability = math.exp(logarithm - math.lgamma(k + 1))
        left -= probability
        times.append(work + k * each)
        weights.append(probability / times[-1])
    half, k = sum(weights) / 2, 0
    while (half := half - weights[k]) > 0:
        k += 1
    return times[k]
