"""The interface of a dialect, and the dialects that one service speaks."""

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

#: the service's own dialect, which it always speaks
OWN = "v1"


class Dialect(ABC):
    """An API over the job queue, such as a vendor's, so that its clients work unmodified.

    A dialect is one class with one entry point in the group ``sf_quantum.dialects``; the
    entry point has the dialect's name. A service has one instance of each dialect, which the
    routes find as ``request.app.state.dialects[name]``. Routes identify the sender, read the
    request, call the queue, and write the answer; the queue does everything else.
    """

    #: name of its entry point; also marks its jobs in the store
    name: ClassVar[str]
    #: the programs that use the dialect, for the reference
    clients: ClassVar[str]
    #: kinds of payload that its clients submit
    payloads: ClassVar[tuple[Kind, ...]]
    #: header in which a submission names its lease
    lease_header: ClassVar[str] = LEASE_HEADER
    #: Start of the dialect's paths. Requests to other paths get the service's own refusals.
    prefix: ClassVar[str] = ""
    #: Paths of submissions, without a slash at the end. Other requests have small bodies.
    submissions: ClassVar[re.Pattern[str]]
    #: whether its routes decompress deflated bodies themselves
    inflates: ClassVar[bool] = False
    #: whether its users know jobs by their number
    numbers_jobs: ClassVar[bool] = False

    def __init__(self, queue: JobQueue) -> None:
        self.queue = queue

    @classmethod
    @abstractmethod
    def routes(cls) -> Sequence[BaseRoute]:
        """Return the routes of the dialect, with their whole paths."""

    def start(self) -> None:  # noqa: B027 - most dialects have no background work
        """Begin background work, once the queue runs."""

    def stop(self) -> None:  # noqa: B027
        """End background work, before the queue stops."""

    def refusal(self, request: Request, refused: Refused) -> Response | None:
        """Write a refusal of a path below :attr:`prefix` as the clients expect it."""
        return None

    def submission_bytes(self, path: str, configured: int) -> int:
        """Return the size limit of a submission, also after decompression.

        :param path: path of the request, which :attr:`submissions` matches
        :param configured: limit in the service's configuration
        """
        return configured

    @staticmethod
    def read(content: JSON, more: Mapping[str, JSON]) -> Submission:
        """Read the content of a large submission.

        See :mod:`~sf_quantum.service.dialects.large_bodies`. This method runs in another
        process if the body has more than 1 MiB.

        :param more: values that the routes have added
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
        """The dialects whose users know jobs by their number."""
        dialects = self.by_name.items()
        return frozenset(name for name, dialect in dialects if dialect.numbers_jobs)

    def start(self) -> None:
        for dialect in self.by_name.values():
            dialect.start()

    def stop(self) -> None:
        for dialect in self.by_name.values():
            dialect.stop()

    def submission_bytes(self, path: str, configured: int) -> int | None:
        """Return the size limit of a submission; ``None`` for other requests."""
        for dialect in self.by_name.values():
            if dialect.submissions.fullmatch(path):
                return dialect.submission_bytes(path, configured)
        return None

    def inflates(self, path: str) -> bool:
        """Return whether the route of a path decompresses deflated bodies itself."""
        owner = self._owner(path)
        return owner is not None and owner.inflates

    def refusal(self, request: Request, refused: Refused) -> Response | None:
        """Write a refusal in the dialect of its path; ``None``: in the service's own form."""
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
