"""Where an attempt of a candidate goes, and why, from what is known at that moment.

Nothing is asked or looked up here, and nothing of StreamFlow is imported, so every case
can be written down as a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sf_quantum.candidates.policy import Policy
from sf_quantum.errors import QuantumError


class Impossible(QuantumError):
    """No target of the binding can ever take the job, so trying again is no use."""


@dataclass(frozen=True)
class Quantum:
    """A quantum target as it is now.

    :param name: as the StreamFlow file calls it
    :param trouble: why nothing can be sent there, in words that follow the name
    :param rests: why it is let alone for a while, in such words
    :param failed: how an earlier attempt of this job failed there, in such words
    :param qubits: the largest problem it takes, in variables; 0 if it does not tell
    :param wait: seconds until a job that joins now would start; None if nobody knows
    :param seconds: from there to the job's end; None if it was never measured
    :param qpu_seconds: of QPU time that the job would be charged; None if not known
    :param cost: of a second of QPU time
    :param maintenance: seconds until it stops taking jobs, if that is announced
    :param load: leases and jobs there, per virtual QPU
    """

    name: str
    trouble: str = ""
    rests: str = ""
    failed: str = ""
    qubits: int = 0
    wait: float | None = 0.0
    seconds: float | None = None
    qpu_seconds: float | None = None
    cost: float = 0.0
    maintenance: float | None = None
    load: float = 0.0

    @property
    def end(self) -> float:
        """Seconds from now to the job's end; what was never measured counts as nothing.

        So it is tried once, and measured.
        """
        return math.inf if self.wait is None else self.wait + (self.seconds or 0.0)


@dataclass(frozen=True)
class Classical:
    """A classical target as it is now; see :class:`Quantum`.

    :param free: a job that comes now would start at once
    """

    name: str
    free: bool = True
    rests: str = ""
    failed: str = ""
    wait: float = 0.0
    seconds: float | None = None

    @property
    def end(self) -> float:
        """See :attr:`Quantum.end`."""
        return self.wait + (self.seconds or 0.0)


@dataclass(frozen=True)
class Spent:
    """What has been spent, and what is promised to jobs that are not over.

    :param unmeasured: one of these is the first of its kind, so that nobody knows what it
        will spend: the rest of the budget is promised to it
    """

    seconds: float = 0.0
    cost: float = 0.0
    unmeasured: bool = False


@dataclass(frozen=True)
class Question:
    """What is known of the job.

    :param variables: the size of its problem, if an input tells
    :param last: an earlier attempt has failed, and no other follows this one
    :param run: spent by all steps of the filter in this run
    :param step: spent by the job's own step
    :param known: false if the journals could not be read, so that nobody knows what was
        spent
    """

    variables: int | None = None
    last: bool = False
    known: bool = True
    run: Spent = Spent()
    step: Spent = Spent()


@dataclass(frozen=True)
class Decision:
    """Where the attempt goes.

    :param targets: their names; the first that has a free place gets it
    :param reason: what follows "on TARGET: "
    """

    quantum: bool
    targets: tuple[str, ...]
    reason: str


def decide(
    policy: Policy,
    job: Question,
    quantum: Sequence[Quantum],
    classical: Sequence[Classical],
) -> Decision:
    """Decide.

    :param quantum: the binding's quantum targets
    :param classical: its classical ones
    :raises Impossible: if there is no classical target and no QPU may take the job
    """
    refused = {q.name: _refusal(policy, job, q) for q in quantum}
    usable = sorted((q for q in quantum if not refused[q.name]), key=_rank)
    places = _places(classical)
    why_not = "; ".join(refused[q.name] for q in quantum if refused[q.name])
    if usable and all(place.failed or place.rests for place in classical):
        bad = [f"{place.name} {place.failed or place.rests}" for place in classical]
        return _on(usable[0], _joined(_starts(usable[0]), *bad))
    if not places:
        return _on(_least_bad(policy, job, quantum, why_not), why_not)
    if job.last and quantum:
        return _off(places, "it is the last attempt")
    if not usable:
        return _off(places, why_not or "the binding lists no QPU")
    return _PREFERENCES[policy.prefer](usable[0], places, why_not)


def _quantum(best: Quantum, _: list[Classical], why_not: str) -> Decision:
    return _on(best, _joined(_starts(best), why_not))


def _classical(best: Quantum, places: list[Classical], why_not: str) -> Decision:
    if any(place.free for place in places):
        return _off(places, f"{next(p.name for p in places if p.free)} is free")
    busy = " and ".join(place.name for place in places)
    verb = "is" if len(places) == 1 else "are"
    return _on(best, _joined(f"{busy} {verb} busy", _starts(best), why_not))


def _earliest(best: Quantum, places: list[Classical], why_not: str) -> Decision:
    places = sorted(places, key=lambda place: place.end)
    first = places[0]
    if best.end <= first.end:
        return _on(best, _joined(f"{_ends(best)}, {_ends(first)}", why_not))
    return _off(places, _joined(f"{_ends(first)}, {_ends(best)}", why_not))


_PREFERENCES: dict[str, Callable[[Quantum, list[Classical], str], Decision]] = {
    "quantum": _quantum,
    "classical": _classical,
    "earliest": _earliest,
}


def _on(best: Quantum, reason: str) -> Decision:
    return Decision(True, (best.name,), reason)


def _off(places: list[Classical], reason: str) -> Decision:
    return Decision(False, tuple(place.name for place in places), reason)


def _rank(target: Quantum) -> tuple[float, float]:
    # a few milliseconds are no reason to go to the busier one
    return round(target.end, 2), target.load


def _refusal(policy: Policy, job: Question, target: Quantum) -> str:
    """Why a job does not go to a QPU, or nothing."""
    never = _never(policy, job, target)
    words = never or target.failed or target.trouble or target.rests
    words = words or _unknown(policy, job, target) or _late(policy, target)
    return f"{target.name} {words}" if words else ""


def _never(policy: Policy, job: Question, target: Quantum) -> str:
    """What no waiting changes."""
    return _size(policy, job, target) or _dear(policy, job, target)


def _size(policy: Policy, job: Question, target: Quantum) -> str:
    size = job.variables
    if size is None:
        return ""
    problem = f"the problem has {size}"
    if target.qubits and size > target.qubits:
        return f"takes {target.qubits} variables and {problem}"
    if policy.max_variables is not None and size > policy.max_variables:
        return (
            f"gets up to {policy.max_variables} variables (maxVariables) and {problem}"
        )
    if policy.min_variables is not None and size < policy.min_variables:
        return f"gets {policy.min_variables} variables or more (minVariables) and {problem}"
    return ""


def _dear(policy: Policy, job: Question, target: Quantum) -> str:
    seconds = target.qpu_seconds or 0.0
    for whose, budget, spent in (
        ("run", policy.run, job.run),
        ("step", policy.step, job.step),
    ):
        for limit, gone, more, unit in (
            (budget.seconds, spent.seconds, seconds, "QPU seconds"),
            (budget.cost, spent.cost, seconds * target.cost, "cost"),
        ):
            if limit is None or (gone + more <= limit and gone < limit):
                continue
            if unit == "cost" and target.cost == 0:
                continue  # it is free
            left = max(0.0, limit - gone)
            return (
                f"would exceed the {whose}'s budget: "
                f"{number(left)} of {number(limit)} {unit} left"
            )
    return ""


def _unknown(policy: Policy, job: Question, target: Quantum) -> str:
    """What nobody knows of a budget now, and may know later."""
    for whose, budget, spent in (
        ("run", policy.run, job.run),
        ("step", policy.step, job.step),
    ):
        if budget.seconds is None and (budget.cost is None or target.cost == 0):
            continue
        may = f"may exceed the {whose}'s budget"
        if not job.known:
            return f"{may}: what was spent cannot be read in the journal"
        if spent.unmeasured:
            return f"{may}: how much a job under way spends is not known yet"
    return ""


def _late(policy: Policy, target: Quantum) -> str:
    if policy.max_wait is not None:
        if target.wait is None:
            return (
                "has no free place and nobody knows for how long, "
                f"maxWait is {number(policy.max_wait)} s"
            )
        if target.wait > policy.max_wait:
            return (
                f"would start in {number(target.wait)} s, "
                f"maxWait is {number(policy.max_wait)} s"
            )
    if target.maintenance is not None and target.end > target.maintenance:
        return f"goes into maintenance in {number(target.maintenance)} s"
    return ""


def _places(classical: Sequence[Classical]) -> list[Classical]:
    """The classical targets to choose from: of bad ones, the least bad."""
    for good in (
        [c for c in classical if not c.failed and not c.rests],
        [c for c in classical if not c.failed],
    ):
        if good:
            return good
    return list(classical)


def _least_bad(
    policy: Policy, job: Question, quantum: Sequence[Quantum], why_not: str
) -> Quantum:
    possible = [q for q in quantum if not _never(policy, job, q)]
    if not possible:
        raise Impossible(f"{why_not}; the binding lists no classical target")
    return min(
        possible,
        key=lambda q: (bool(q.trouble), bool(q.failed), bool(q.rests), *_rank(q)),
    )


def _starts(target: Quantum) -> str:
    if target.wait is None:
        return f"{target.name} has no free place, and nobody knows for how long"
    if target.wait == 0:
        return f"{target.name} is free"
    return f"{target.name} would start in {number(target.wait)} s"


def _ends(target: Quantum | Classical) -> str:
    if math.isinf(target.end):
        return f"nobody knows when {target.name} would end"
    words = f"{target.name} would end in {number(target.end)} s"
    return f"{words} or later (not measured yet)" if target.seconds is None else words


def _joined(*parts: str) -> str:
    return "; ".join(part for part in parts if part)


def number(value: float) -> str:
    """A number as a person reads it: whole from 10 up, else with two digits."""
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.2g}"
