"""A cluster's partitions under FIFO with EASY backfilling, as discrete events."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Container, Generator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from itertools import islice
from typing import NamedTuple, TypeAlias

import simpy
from simpy.events import EventPriority

from sf_quantum.planning.workloads.quantities import Count, Interval, Seconds
from sf_quantum.validation import Section

# a pass is processed after all other events of the same time
_LAST = EventPriority(2)


_Size: TypeAlias = tuple[tuple[str, int], ...]


class Scheduling(Section):
    """How Slurm's controller schedules jobs; times are in seconds.

    :param queue_seconds: time from one pass over the queue, in the order of submission, to
        the next: ``batch_sched_delay``, at least 1 in Slurm, which starts no batch job
        between passes; with 0, a pass follows whenever a job is submitted or ends
    :param backfill_seconds: time from one pass of backfilling to the next, ``bf_interval`` of
        ``slurm.conf``; with 0, a pass follows whenever a job is submitted or ends; infinite
        for no backfilling
    :param depth: number of pending jobs that a pass considers, ``bf_max_job_test``
    :param limit_seconds: unit of time limits; users' estimates are rounded up to a multiple of
        this unit: whole minutes in Slurm; 0 for no rounding
    :param completing_seconds: time until the nodes of a job that has ended are free
    """

    queue_seconds: Interval = 0.0
    backfill_seconds: Interval = 0.0
    depth: Count = 500
    limit_seconds: Seconds = 60.0
    completing_seconds: Seconds = 0.0

    def limit(self, seconds: float) -> float:
        """Return the time limit for a user's estimate."""
        if not self.limit_seconds:
            return seconds
        # a computed estimate may exceed a multiple by a rounding error
        return math.ceil(seconds / self.limit_seconds - 1e-9) * self.limit_seconds


# Slurm's queue without the granularity of its times
IDEAL = Scheduling(limit_seconds=0)


@dataclass
class Usage:
    """The node usage of one owner's requests.

    :param held: node-seconds by partition
    :param busy: node-seconds by partition in which the nodes computed
    """

    held: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)

    def add_held(self, partition: str, seconds: float) -> None:
        self.held[partition] = self.held.get(partition, 0.0) + seconds

    def add_busy(self, partition: str, seconds: float) -> None:
        self.busy[partition] = self.busy.get(partition, 0.0) + seconds


@dataclass(eq=False)
class Allocation:
    """A request for nodes, and its grant.

    :param nodes: number of nodes by partition; all are granted at the same time
    :param seconds: the user's estimate of the time for which the nodes are held
    :param usage: usage to which the nodes are charged
    :param granted: event that occurs when the nodes are granted
    :param most: see :meth:`Cluster.request`
    :param size: requested nodes by partition
    """

    number: int
    nodes: dict[str, int]
    seconds: float
    usage: Usage
    granted: simpy.Event
    most: Mapping[str, int]
    since: float = 0.0
    ends: float = 0.0
    size: _Size = field(init=False)

    def __post_init__(self) -> None:
        self.size = tuple(self.nodes.items())

    @property
    def started(self) -> bool:
        return self.granted.triggered


class _Running(NamedTuple):
    ends: float
    number: int
    nodes: int


class _Reservation(NamedTuple):
    """The expected start of a blocked request, and the nodes that it leaves free."""

    at: float
    spare: dict[str, int]


class _Pass(simpy.Event):
    def __init__(
        self,
        env: simpy.Environment,
        run: Callable[[simpy.Event], None],
        delay: float = 0.0,
    ) -> None:
        super().__init__(env)
        self.callbacks = [run]
        self._ok, self._value = True, None
        env.schedule(self, _LAST, delay)


class Cluster:
    """Nodes in partitions, each with its own queue: FIFO with EASY backfilling.

    The first request of a partition that cannot start gets a reservation at the earliest
    time at which the request can start by the estimates of running jobs. Later requests start
    before the first request if they do not delay it: by their estimates, they end before the
    reservation, or they use nodes that the reservation leaves free (Lifka, JSSPP 1995; Mu'alem
    and Feitelson, IEEE TPDS 12, 2001, p. 529). A job that exceeds its estimate is expected to
    end at any moment.

    A request for nodes of several partitions, a heterogeneous job, starts in all partitions at
    the same time. It gets a reservation when it is the first to wait in each partition.

    A request may include licences. While too few licences are free, the request has no
    reservation, and others may overtake it, as in Slurm without ``bf_licenses``.

    :param partitions: number of nodes by partition
    :param licences: number of licences by name; partitions have other names
    """

    def __init__(
        self,
        env: simpy.Environment,
        partitions: Mapping[str, int],
        licences: Mapping[str, int] | None = None,
        scheduling: Scheduling = IDEAL,
    ) -> None:
        self._env = env
        self._licences = dict(licences or {})
        self._scheduling = scheduling
        self.free = {**partitions, **self._licences}
        self._running: dict[str, list[_Running]] = {name: [] for name in self.free}
        # Pending requests by size, and then in the order of submission.
        self._pending: dict[_Size, OrderedDict[int, Allocation]] = {}
        self._number = 0
        self._pass: simpy.Event | None = None
        self._backfilling: simpy.Event | None = None

    def request(
        self,
        nodes: Mapping[str, int],
        seconds: float,
        usage: Usage,
        most: Mapping[str, int] | None = None,
    ) -> Allocation:
        """Submit a request; wait for :attr:`Allocation.granted`.

        :param nodes: smallest accepted number of nodes by partition, and licences by name
        :param seconds: the user's estimate of the time for which the nodes are held
        :param most: largest number of nodes by partition; more than ``nodes`` are granted
            if they are free and no earlier request waits for nodes of the partition
        """
        self._number += 1
        allocation = Allocation(
            self._number,
            dict(nodes),
            self._scheduling.limit(seconds),
            usage,
            self._env.event(),
            most or {},
        )
        queue = self._pending.setdefault(allocation.size, OrderedDict())
        queue[allocation.number] = allocation
        self._schedule()
        return allocation

    def release(self, allocation: Allocation, *partitions: str) -> None:
        """Release the nodes of some partitions, or all nodes; cancel a pending request."""
        if not allocation.started:
            self._withdraw(allocation)
            self._schedule()
            return
        released = {
            name: allocation.nodes.pop(name)
            for name in partitions or tuple(allocation.nodes)
            if name in allocation.nodes
        }
        for name, nodes in released.items():
            seconds = nodes * (self._env.now - allocation.since)
            allocation.usage.add_held(name, seconds)
        if self._scheduling.completing_seconds:
            self._env.process(self._complete(allocation, released))
        else:
            self._free_all(allocation, released)

    def _complete(
        self, allocation: Allocation, released: Mapping[str, int]
    ) -> Generator[simpy.Event, None, None]:
        licences = self._licences.keys() & released.keys()
        self._free_all(allocation, {name: released[name] for name in licences})
        yield self._env.timeout(self._scheduling.completing_seconds)
        nodes = released.keys() - licences
        self._free_all(allocation, {name: released[name] for name in nodes})

    def _free_all(self, allocation: Allocation, released: Mapping[str, int]) -> None:
        for name, nodes in released.items():
            self.free[name] += nodes
            running = self._running[name]
            key = _Running(allocation.ends, allocation.number, nodes)
            del running[bisect_left(running, key)]
        self._schedule()

    def _schedule(self) -> None:
        """Schedule the next pass of each kind, after all other events of the same time."""
        if not self._pending:
            return
        queue, backfill = (
            self._scheduling.queue_seconds,
            self._scheduling.backfill_seconds,
        )
        if self._pass is None:
            self._pass = _Pass(self._env, self._pass_of_queue, self._until(queue))
        if 0 < backfill < math.inf and self._backfilling is None:
            # in Slurm, both kinds of passes are independent, so they get different times here
            delay = self._until(backfill, backfill / 2)
            self._backfilling = _Pass(self._env, self._pass_of_backfilling, delay)

    def _until(self, interval: float, first: float = 0.0) -> float:
        """Return the time to the next pass; 0, without an interval, means now."""
        return interval - (self._env.now - first) % interval if interval else 0.0

    def _pass_of_queue(self, _: simpy.Event) -> None:
        self._pass = None
        self._start_all(backfill=not self._scheduling.backfill_seconds)

    def _pass_of_backfilling(self, _: simpy.Event) -> None:
        self._backfilling = None
        self._start_all(backfill=True)

    def _start_all(self, *, backfill: bool) -> None:
        """Start the requests that can start, in the order of submission.

        A size that does not fit is skipped for the rest of the pass, since a pass frees no
        nodes: so the run time of a pass does not grow with the number of equal requests.

        :param backfill: whether requests may overtake a request that cannot start
        """
        blocked: dict[str, Allocation] = {}
        reservations: dict[int, _Reservation] = {}
        started = []
        heads = [
            (request.number, request, others)
            for others in (iter(queue.values()) for queue in self._pending.values())
            for request in islice(others, 1)
        ]
        heapify(heads)
        for _considered in range(self._scheduling.depth):
            if not heads or not any(self.free.values()):
                break
            _number, request, others = heads[0]
            fits = self._fits(request)
            waits = not blocked.keys().isdisjoint(request.nodes)
            if fits and (
                not waits or (backfill and self._keeps(request, blocked, reservations))
            ):
                self._start(request, blocked)
                started.append(request)
            elif not waits and self._has_licences(request):
                nodes = request.nodes.keys() - self._licences.keys()
                blocked.update(dict.fromkeys(nodes, request))
            following = next(others, None) if fits else None
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (following.number, following, others))
        for request in started:
            self._withdraw(request)

    def _withdraw(self, request: Allocation) -> None:
        queue = self._pending[request.size]
        del queue[request.number]
        if not queue:
            del self._pending[request.size]

    def _fits(self, request: Allocation) -> bool:
        return all(nodes <= self.free[name] for name, nodes in request.nodes.items())

    def _has_licences(self, request: Allocation) -> bool:
        return all(
            number <= self.free[name]
            for name, number in request.nodes.items()
            if name in self._licences
        )

    def _keeps(
        self,
        request: Allocation,
        blocked: Mapping[str, Allocation],
        reservations: dict[int, _Reservation],
    ) -> bool:
        """Return whether a fitting request delays no reservation; if so, use spare nodes."""
        ends = self._env.now + request.seconds
        spares = []
        for name, nodes in request.nodes.items():
            if (first := blocked.get(name)) is None:
                continue
            # computed only if a request could be backfilled
            if first.number not in reservations:
                reservations[first.number] = self._reserve(first)
            reservation = reservations[first.number]
            if ends > reservation.at:
                if nodes > reservation.spare[name]:
                    return False
                spares.append((reservation.spare, name, nodes))
        for spare, name, nodes in spares:
            spare[name] -= nodes
        return True

    def _reserve(self, first: Allocation) -> _Reservation:
        """Compute when a blocked request can start, and which nodes it leaves free."""
        at = self._env.now
        wanted = {
            name: nodes
            for name, nodes in first.nodes.items()
            if name not in self._licences
        }
        for name, nodes in wanted.items():
            free = self.free[name]
            for running in self._running[name]:
                if free >= nodes:
                    break
                free += running.nodes
                at = max(at, running.ends)
        spare = {}
        for name, nodes in wanted.items():
            ended = bisect_left(self._running[name], (at, float("inf")))
            freed = sum(one.nodes for one in self._running[name][:ended])
            spare[name] = self.free[name] + freed - nodes
        return _Reservation(at, spare)

    def _start(self, allocation: Allocation, blocked: Container[str]) -> None:
        """Grant a request, with additional nodes only in partitions that are not blocked."""
        allocation.since = self._env.now
        allocation.ends = allocation.since + allocation.seconds
        for name, least in allocation.nodes.items():
            nodes = least
            if name in allocation.most and name not in blocked:
                nodes = max(least, min(allocation.most[name], self.free[name]))
            allocation.nodes[name] = nodes
            self.free[name] -= nodes
            insort(
                self._running[name],
                _Running(allocation.ends, allocation.number, nodes),
            )
        allocation.granted.succeed()
