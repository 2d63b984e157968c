"""Records each request, with a line in the log and in the counts of the metrics."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable

from starlette.requests import Request

from sf_quantum.files import JSON
from sf_quantum.service.domain.jobs import Identity
from sf_quantum.service.http.auth import (
    MUNGE_HEADER,
    TOKEN_HEADER,
    AuthError,
    Unauthorized,
)
from sf_quantum.service.http.buckets import TokenBuckets
from sf_quantum.service.queue.observations import Histogram

# Limits on log lines about requests without a valid credential or beyond a rate limit, for
# all senders together, so that such requests cannot fill the disk.
LINES_PER_SECOND, LINES_AT_ONCE = 1.0, 100
# upper bounds of durations in seconds; durations include waits that clients requested
DURATIONS = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0)
# label of all paths without a route, so that no client can create labels
OTHER = "other"
METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
logger = logging.getLogger(__name__)


class Traffic:
    """Records requests after their responses; belongs to the event loop's thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        #: number of requests by method, route and class of the status
        self.requests = Counter[tuple[str, str, str]]()
        #: durations of requests by route
        self.durations = defaultdict[str, Histogram](lambda: Histogram(DURATIONS))
        self._bounded = TokenBuckets(LINES_PER_SECOND, LINES_AT_ONCE, clock)
        self._omitted = 0

    def ended(
        self,
        request: Request,
        id_: str,
        sender: Identity | AuthError,
        name: str,
        status: int,
        seconds: float,
    ) -> None:
        """Record a request.

        :param id_: id of the request
        :param name: name of the sender
        :param status: status of the response; 0 if the client disconnected before it
        :param seconds: duration of the request
        """
        # not the path itself, which may contain the id of a lease, a secret
        route = getattr(request.scope.get("route"), "path", OTHER)
        method = request.method if request.method in METHODS else OTHER
        result = f"{status // 100}xx" if status else "none"
        self.requests[method, route, result] += 1
        self.durations[route].observe(seconds)
        failed = isinstance(sender, AuthError) and _has_credential(request)
        level = logging.WARNING if failed else logging.INFO
        if not logger.isEnabledFor(level):
            return
        fields: dict[str, JSON] = {
            "request": id_,
            "user": name,
            "method": method,
            "route": route,
            "status": status,
            "seconds": round(seconds, 6),
        }
        # no reason for a request that has no credential and needs none
        if isinstance(sender, AuthError) and (failed or status == sender.status):
            fields["reason"] = str(sender.__cause__ or sender.detail)
        if isinstance(sender, AuthError) or status == 429:
            if self._bounded.take(""):
                self._omitted += 1
                return
            if self._omitted:
                fields["omitted"], self._omitted = self._omitted, 0
        message = "request"
        if failed:
            refused = isinstance(sender, Unauthorized)
            message = "failed login" if refused else "credential not checked"
        logger.log(level, message, extra={"fields": fields})


def _has_credential(request: Request) -> bool:
    names = ("authorization", TOKEN_HEADER, MUNGE_HEADER)
    return any(name in request.headers for name in names)
