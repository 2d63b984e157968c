"""What a filter knows of its jobs and targets from one decision to the next."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from sf_quantum import journal
from sf_quantum.candidates.decision import Classical, Decision, Quantum, Spent, number
from sf_quantum.candidates.history import History, Past
from sf_quantum.candidates.policy import Policy
from sf_quantum.qpu import QpuStatus

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Asked:
    """A job that asks where to go.

    :param attempt: counts from 1
    """

    job: str
    step: str
    policy: Policy
    attempt: int


@dataclass(frozen=True)
class Room:
    """How much room a classical target has.

    :param places: jobs that it runs at once
    :param free: places that are free; below 0, so many jobs wait for one
    """

    places: int = 1
    free: int = 1


@dataclass(frozen=True)
class _Sent:
    """A job that was sent somewhere and has not ended; what it may spend is promised.

    :param unmeasured: to a QPU, and nobody knows how much it may spend
    """

    step: str
    decision: Decision
    qpu_seconds: float
    cost: float
    unmeasured: bool


class Ledger:
    """Attempts, failures, rests, and what jobs take and spend.

    :param costs: of a QPU second, by target
    :param cooldown: seconds for which a target that failed is let alone
    """

    def __init__(self, costs: Mapping[str, float], cooldown: float) -> None:
        self._costs = dict(costs)
        self._told_costs: dict[str, float] = {}
        self._cooldown = cooldown
        self._attempts: defaultdict[str, int] = defaultdict(int)
        self._failed: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._rests: dict[str, tuple[float, str]] = {}
        self._doubts: dict[str, tuple[str, str]] = {}
        self._ended: dict[str, str] = {}
        self._sent: dict[str, _Sent] = {}
        self._past: Past | None = None
        self._reading: asyncio.Task[None] | None = None

    async def update(self, seconds: float) -> None:
        """Read the journals; what cannot be read in time counts from the next time on.

        :param seconds: how long to wait for it
        """
        record = journal.current()
        if record is None:
            return
        if self._past is None:
            self._past = Past(record)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                if self._reading is not None:
                    # one that is under way may have missed the latest events
                    await asyncio.wait([self._reading])
                if self._reading is None or self._reading.done():
                    self._reading = asyncio.create_task(self._read(self._past))
                await asyncio.wait([self._reading])

    def ask(self, job: str, step: str, policy: Policy) -> Asked:
        """Begin an attempt; one before it that has not ended well has failed."""
        if job in self._doubts:
            self.fail(job, *self._doubts.pop(job))
        if (target := self._ended.pop(job, None)) is not None:
            # its outputs may be at fault, so the target does not rest
            self._failed[job].setdefault(target, "ended well, but without its outputs")
        if (sent := self._sent.pop(job, None)) is not None:
            self._failed[job].setdefault(sent.decision.targets[0], "gave no result")
        self._attempts[job] += 1
        return Asked(job, step, policy, self._attempts[job])

    def send(self, asked: Asked, decision: Decision) -> None:
        """Take note of where a job goes."""
        target = decision.targets[0]
        known = self._qpu_seconds(asked, target) if decision.quantum else 0.0
        seconds = known or 0.0
        self._sent[asked.job] = _Sent(
            asked.step, decision, seconds, seconds * self._cost(target), known is None
        )

    def end(self, job: str, target: str) -> None:
        """Take note that a job's command has ended well; its outputs are still to come."""
        self._sent.pop(job, None)
        self._ended[job] = target

    def complete(self, job: str) -> None:
        """Take note that a job is complete, its outputs too."""
        forgotten = self._sent, self._failed, self._attempts, self._doubts, self._ended
        for told in forgotten:
            told.pop(job, None)

    def doubt(self, job: str, target: str, words: str) -> None:
        """Take note of an end that may be a failure; if the job asks again, it was one."""
        self._sent.pop(job, None)
        self._doubts[job] = (target, words)

    def fail(self, job: str, target: str, words: str) -> None:
        """Take note that an attempt has failed on a target, which rests now."""
        self._sent.pop(job, None)
        self._failed[job][target] = words
        self._rests[target] = (time.monotonic() + self._cooldown, words)

    def attempts(self, job: str) -> int:
        """How many attempts of a job that has not ended well there were."""
        return self._attempts[job]

    def failures(self, job: str) -> Mapping[str, str]:
        """Where attempts of a job that has not ended well have failed, and how."""
        return self._failed.get(job, {})

    def sent_to(self, target: str) -> list[str]:
        """The jobs that were sent to a target and have not ended."""
        return [
            job for job, sent in self._sent.items() if target in sent.decision.targets
        ]

    def quantum(
        self, asked: Asked, name: str, answer: QpuStatus | str | None
    ) -> Quantum:
        """A quantum target as it is now.

        :param answer: of its QPU; None of one that was not asked, since it rested
        """
        failed, rests = self._grudges(asked.job, name)
        if answer is None:
            # its rest may have ended in between, and nobody knows how it is
            rests = rests or "rested when the others were asked"
            return Quantum(name, rests=rests, failed=failed, wait=None)
        if isinstance(answer, str):
            return Quantum(name, answer, rests, failed, wait=None)
        if answer.cost_per_second is not None:
            self._told_costs[name] = answer.cost_per_second
        trouble = ""
        if not answer.online:
            trouble = f"is offline: {answer.reason}" if answer.reason else "is offline"
        seconds, sent = self._seconds(asked, name), len(self.sent_to(name))
        return Quantum(
            name,
            trouble=trouble,
            rests=rests,
            failed=failed,
            qubits=answer.qubits,
            wait=wait(answer, sent, seconds, self._device_seconds(asked, name)),
            seconds=seconds,
            qpu_seconds=self._qpu_seconds(asked, name),
            cost=self._cost(name),
            maintenance=answer.maintenance_seconds,
            load=(max(answer.leases, sent) + answer.queue_length) / answer.vqpus,
        )

    def classical(self, asked: Asked, name: str, room: Room) -> Classical:
        """A classical target as it is now."""
        failed, rests = self._grudges(asked.job, name)
        took = self._history.took(asked.step, name)
        seconds = took.device_seconds + took.beside_seconds if took else None
        before = max(0, 1 - room.free)  # jobs that must end before this one starts
        rounds = -(-before // room.places)
        return Classical(
            name,
            free=room.free > 0,
            rests=rests,
            failed=failed,
            wait=rounds * (seconds or 0.0),
            seconds=seconds,
        )

    def spent(self, step: str | None = None) -> Spent:
        """What a step, or the whole run, has spent, and what is promised to its jobs."""
        told = self._history.spent(step)
        sent = [s for s in self._sent.values() if step in (None, s.step)]
        return Spent(
            sum(told.values()) + sum(s.qpu_seconds for s in sent),
            sum(seconds * self._cost(target) for target, seconds in told.items())
            + sum(s.cost for s in sent),
            unmeasured=any(s.unmeasured for s in sent),
        )

    def rests(self, target: str) -> bool:
        """Whether a target that failed is let alone now."""
        return self._rests.get(target, (0.0, ""))[0] > time.monotonic()

    def has_cost(self, target: str) -> bool:
        """Whether a QPU second's cost is known of a target."""
        return target in self._costs or target in self._told_costs

    @property
    def known(self) -> bool:
        """Whether the journals have been read at all."""
        return self._past is not None and self._past.known

    @property
    def silent(self) -> set[str]:
        """Targets whose QPU does not tell what was spent on it."""
        return self._history.silent

    @property
    def _history(self) -> History:
        return self._past.history if self._past is not None else History()

    async def _read(self, past: Past) -> None:
        try:
            # taken in here, on the event loop: nobody ever sees half of it
            past.take(await asyncio.to_thread(past.read))
        except (OSError, ValueError) as error:
            logger.warning("the run's journal cannot be read: %s", error)

    def _grudges(self, job: str, target: str) -> tuple[str, str]:
        """How the target failed the job before, and why it rests."""
        failed, rests = self._failed.get(job, {}).get(target), ""
        until, words = self._rests.get(target, (0.0, ""))
        if (left := until - time.monotonic()) > 0:
            rests = f"rests for {number(left)} s after a failure ({words})"
        return f"failed this job before ({failed})" if failed else "", rests

    def _device_seconds(self, asked: Asked, target: str) -> float | None:
        """On the QPU, as they go by."""
        if asked.policy.expected_seconds is not None:
            return asked.policy.expected_seconds
        took = self._history.took(asked.step, target)
        return took.device_seconds if took is not None else None

    def _seconds(self, asked: Asked, target: str) -> float | None:
        """From a job's start on a QPU to its end."""
        device = self._device_seconds(asked, target)
        took = self._history.took(asked.step, target)
        return (
            device if device is None or took is None else device + took.beside_seconds
        )

    def _qpu_seconds(self, asked: Asked, target: str) -> float | None:
        if asked.policy.expected_seconds is not None:
            return asked.policy.expected_seconds
        took = self._history.took(asked.step, target)
        return took.qpu_seconds if took is not None else None

    def _cost(self, target: str) -> float:
        return self._costs.get(target, self._told_costs.get(target, 0.0))


def wait(
    status: QpuStatus, sent: int, seconds: float | None, device_seconds: float | None
) -> float | None:
    """How long a job that joins now waits for its start on a QPU.

    :param sent: how many jobs of this run are there or on their way
    :param seconds: how long one stays, if that is known
    :param device_seconds: how long of that it has the device, which one job has at a time
    :returns: None if nobody knows
    """
    queue = status.eta_seconds
    if queue is None and (status.queue_length == 0 or seconds is not None):
        queue = status.queue_length * (seconds or 0.0)
    if queue is not None:
        # those on their way there are in no queue yet, and will be
        queue += max(0, sent - status.queue_length) * (device_seconds or 0.0)
    taken = max(status.leases, sent)
    if taken < status.vqpus:
        return queue
    if seconds is None:
        return None
    # nobody tells when a lease ends: one like ours is the best guess
    rounds = 1 + (taken - status.vqpus) // status.vqpus
    return max(queue or 0.0, rounds * seconds)
