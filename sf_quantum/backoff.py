"""How long each loop of this package waits before it retries or polls again.

Libraries such as tenacity repeat a call until it succeeds. The loops of this package also
wait for events, and return to the first pause after progress, so this module provides only
the pauses.

Clients that are refused at the same moment, or lose a service that is restarted, would all
retry at the same moment. So half of each pause is drawn at random: the "equal jitter"
of M. Brooker, Exponential Backoff And Jitter, AWS Architecture Blog, 2015. The article's "full
jitter" spreads clients further, but lets some of them retry almost immediately.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

# Separate from Python's global generator, which the calling program may have seeded.
_random = random.Random()


@dataclass(frozen=True)
class Backoff:
    """Growing pauses between attempts.

    :param first_seconds: upper bound of the first pause
    :param longest_seconds: upper bound of all pauses
    :param growth: factor from each upper bound to the next
    :param jitter: fraction of each pause that is drawn at random; 0 if a single client
        makes these attempts
    """

    first_seconds: float
    longest_seconds: float
    growth: float = 2.0
    jitter: float = 0.5

    def pauses(self) -> Iterator[float]:
        """Yield the pauses in seconds, endlessly."""
        pause = self.first_seconds
        while True:
            yield pause * (1 - self.jitter * _random.random())
            pause = min(pause * self.growth, self.longest_seconds)


#: requests to a QPU, and to a QPU service, which restarts within seconds
REQUEST = Backoff(0.2, 3.0)
#: jobs in a vendor's queue
JOB = Backoff(0.05, 2.0, growth=1.5)
#: requests for leases of a QPU that is failing or does not queue lease requests
LEASE = Backoff(0.1, 10.0, growth=1.6)
#: requests to Slurm's controller and the login node, which many users share
CLUSTER = Backoff(0.5, 30.0)
#: job details, which Slurm writes a moment after the job has ended
DETAIL = Backoff(0.05, 0.4)
#: the service's requests to a QPU vendor's API about the jobs of its device
VENDOR = Backoff(0.2, 30.0)
#: requests for the status of a failing vendor
STATUS = Backoff(0.5, 10.0)
#: requests to a vendor that refuses the service's credentials, and may lock the account
ACCESS = Backoff(1.0, 60.0, jitter=0.0)
#: searches for jobs that were given up, which may still run at their vendor
GIVEN_UP = Backoff(10.0, 3600.0)
#: restarts of the service's background tasks after an unexpected error
TASK = Backoff(1.0, 60.0, jitter=0.0)
#: writes to the service's own database, on a disk that is full or slow
DATABASE = Backoff(0.1, 2.0, growth=3.0, jitter=0.0)
