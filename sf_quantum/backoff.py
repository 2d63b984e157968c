"""How long each loop of this package waits before it retries or polls again.

Libraries such as tenacity repeat a call until it succeeds. The loops of this package also
wait for events, and go back to the first pause when there is progress, so they use only
the pauses.

Clients that are refused at the same moment, or lose a service that is restarted, would all
retry at the same moment. So half of each pause is drawn at random: the "equal jitter"
of M. Brooker, Exponential Backoff And Jitter, AWS Architecture Blog, 2015. The "full jitter"
there spreads clients further, but lets some of them retry immediately.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

# Kept apart from the random numbers of the calling program, which may be seeded.
_draws = random.Random()


@dataclass(frozen=True)
class Backoff:
    """Growing pauses between attempts.

    :param first_seconds: upper bound of the first pause
    :param longest_seconds: upper bound of all pauses
    :param growth: factor from each upper bound to the next
    :param jitter: the part of each pause that is drawn at random; 0 if no other client
        makes such attempts
    """

    first_seconds: float
    longest_seconds: float
    growth: float = 2.0
    jitter: float = 0.5

    def pauses(self) -> Iterator[float]:
        """Yield the pauses in seconds, endlessly."""
        pause = self.first_seconds
        while True:
            yield pause * (1 - self.jitter * _draws.random())
            pause = min(pause * self.growth, self.longest_seconds)


#: requests to a QPU, and to a QPU service, which restarts within seconds
REQUEST = Backoff(0.2, 3.0)
#: jobs in a vendor's queue
JOB = Backoff(0.05, 2.0, growth=1.5)
#: leases of a QPU that is failing or does not queue lease requests
LEASE = Backoff(0.1, 10.0, growth=1.6)
#: Slurm's controller and the login node, which many users share
CLUSTER = Backoff(0.5, 30.0)
#: job details, which Slurm writes a moment after the job has ended
DETAIL = Backoff(0.05, 0.4)
#: a QPU vendor's API: requests of the service about the jobs of its device
VENDOR = Backoff(0.2, 30.0)
#: a vendor that is failing, until its status is known again
STATUS = Backoff(0.5, 10.0)
#: a vendor that refuses the service's credentials, and may lock its account
ACCESS = Backoff(1.0, 60.0, jitter=0.0)
#: jobs that were given up, which may still run at their vendor
GIVEN_UP = Backoff(10.0, 3600.0)
#: the service's background tasks, after an unexpected error
TASK = Backoff(1.0, 60.0, jitter=0.0)
#: the service's own database, on a disk that is full or slow
DATABASE = Backoff(0.1, 2.0, growth=3.0, jitter=0.0)
