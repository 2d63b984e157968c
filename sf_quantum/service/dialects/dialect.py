"""The interface of a dialect, and the dialects of one service."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from fastapi import Request, Response
from starlette.routing import BaseRoute

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.protocol.leases import LEASE_HEADER
from sf_quantum.registry import Registry
from sf_quantum.service.domain.errors import Refused
from sf_quantum.service.domain.jobs import Kind, Submission
from sf_quantum.service.queue.job_queue import JobQueue

#: the service's own dialect, which is always enabled
OWN = "v1"


class Dialect(ABC):
    """An HTTP API over the job queue; with a vendor's API, its clients work unmodified.

    A dialect is one class with one entry point in the group ``sf_quantum.dialects``; the
    entry point has the dialect's name. A service has one instance of each dialect, which the
    routes find as ``request.app.state.dialects[name]``. Routes identify the sender, read the
    request, call the queue and write the response; the queue does everything else.
    """

    #: name of the dialect's entry point; it also marks the dialect's jobs in the store
    name: ClassVar[str]
    #: the programs that use the dialect, for the reference documentation
    clients: ClassVar[str]
    #: kinds of payload that its clients submit
    payloads: ClassVar[tuple[Kind, ...]]
    #: header of a submission that contains the id of the lease
    lease_header: ClassVar[str] = LEASE_HEADER
    #: beginning of the paths whose refusals the dialect writes (:meth:`refusal`); for other
    #: paths, the service writes refusals in its own form
    prefix: ClassVar[str] = ""
    #: paths of submissions, without a final slash; all other requests have small bodies
    submissions: ClassVar[re.Pattern[str]]
    #: whether its routes themselves decompress deflated bodies
    inflates: ClassVar[bool] = False
    #: whether its users identify jobs by their numbers
    numbers_jobs: ClassVar[bool] = False

    def __init__(self, queue: JobQueue) -> None:
        self.queue = queue

    @classmethod
    @abstractmethod
    def routes(cls) -> Sequence[BaseRoute]:
        """Return the routes of the dialect, with their full paths."""

    def start(self) -> None:  # noqa: B027 - most dialects have no background work
        """Begin background work; called once the queue runs."""

    def stop(self) -> None:  # noqa: B027
        """End background work; called before the queue stops."""

    def refusal(self, request: Request, refused: Refused) -> Response | None:
        """Write a refusal for a path below :attr:`prefix` in the form that clients expect.

        :returns: ``None`` if the service writes the refusal in its own form
        """
        return None

    def submission_bytes(self, path: str, configured: int) -> int:
        """Return the size limit of a submission, before and after decompression.

        :param path: path of the request; it matches :attr:`submissions`
        :param configured: limit in the service's configuration
        """
        return configured

    @staticmethod
    def read(content: JSON, more: Mapping[str, JSON]) -> Submission:
        """Read the content of a large submission.

        See :mod:`~sf_quantum.service.dialects.large_bodies`. This method runs in another
        process if the body is larger than 1 MiB.

        :param content: content of the body
        :param more: further values from the route
        :raises pydantic.ValidationError: if a field is invalid
        :raises sf_quantum.service.domain.errors.Refused: if the submission is refused for
            another reason
        """
        raise NotImplementedError


class Dialects:
    """The dialects of one service, as the guard of its requests sees them."""

    def __init__(self, queue: JobQueue, names: Sequence[str] | None = None) -> None:
        """Create the dialects.

        :param names: dialects in addition to the service's own; ``None``: all installed
            dialects
        """
        chosen = dict.fromkeys((OWN, *(installed() if names is None else names)))
        self.by_name = {name: load(name)(queue) for name in chosen}

    @property
    def routes(self) -> list[BaseRoute]:
        """The routes of all dialects."""
        return [
            route for dialect in self.by_name.values() for route in dialect.routes()
        ]

    @property
    def numbered(self) -> frozenset[str]:
        """The names of the dialects whose users identify jobs by their numbers."""
        dialects = self.by_name.items()
        return frozenset(name for name, dialect in dialects if dialect.numbers_jobs)

    def start(self) -> None:
        for dialect in self.by_name.values():
            dialect.start()

    def stop(self) -> None:
        for dialect in self.by_name.values():
            dialect.stop()

    def submission_bytes(self, path: str, configured: int) -> int | None:
        """Return the size limit of a submission; ``None`` if the path takes no submissions."""
        for dialect in self.by_name.values():
            if dialect.submissions.fullmatch(path):
                return dialect.submission_bytes(path, configured)
        return None

    def inflates(self, path: str) -> bool:
        """Return whether the route of a path decompresses deflated bodies itself."""
        owner = self._owner(path)
        return owner is not None and owner.inflates

    def refusal(self, request: Request, refused: Refused) -> Response | None:
        """Write a refusal in the dialect of the request's path.

        :returns: ``None`` if the service writes the refusal in its own form
        """
        owner = self._owner(request.url.path)
        return None if owner is None else owner.refusal(request, refused)

    def _owner(self, path: str) -> Dialect | None:
        for dialect in self.by_name.values():
            if dialect.prefix and path.startswith(dialect.prefix):
                return dialect
        return None


_registry: Registry[type[Dialect]] = Registry("sf_quantum.dialects", "dialect")


def installed() -> list[str]:
    """List the names of the installed dialects."""
    return _registry.names()


def load(name: str) -> type[Dialect]:
    """Load the class of a dialect.

    :raises InputError: if the class is not installed, cannot be loaded, or is not a dialect
    """
    loaded = _registry.load(name)
    if not (isinstance(loaded, type) and issubclass(loaded, Dialect)):
        raise InputError(f"dialect {name!r}: its entry point is not a Dialect")
    return loaded
