"""The experiment: strategies simulated on the same draws, and their measured costs."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import simpy

from sf_quantum.files import JSON
from sf_quantum.planning import random_draws
from sf_quantum.planning.estimate import Estimate
from sf_quantum.planning.simulation.application import Application, Outcome
from sf_quantum.planning.simulation.cluster import Cluster
from sf_quantum.planning.simulation.qpu import Device, Process, QpuService, Window
from sf_quantum.planning.simulation.site import Site, licence
from sf_quantum.planning.simulation.strategies import Strategy
from sf_quantum.planning.workloads.workload import HOUR, Qpu, Workload
from sf_quantum.service.domain.settings import PolicyChoice

# minimum run time in the computation of slowdowns, instead of shorter run times (Feitelson
# et al., JSSPP 1997)
SHORT_SECONDS = 10.0

#: name of the measure that :func:`.recommendation.weigh` adds
WEIGHTED = "weighted-sum"
#: measures and their units, in the order of tables
MEASURES: Mapping[str, str] = {
    "wall": "s",
    "wait": "s",
    "slowdown": "",
    "makespan": "s",
    "node-seconds": "s",
    "quantum-node-seconds": "s",
    "qpu-seconds": "s",
    "lease-seconds": "s",
    "utilisation": "",
    "gap": "s",
    "energy": "Wh",
    "cost": "",
    "others-wait": "s",
    "others-slowdown": "",
    WEIGHTED: "",
}


@dataclass(frozen=True)
class Result:
    """The measures of a strategy, by repetition."""

    strategy: Strategy
    repetitions: Sequence[Mapping[str, float]]

    def measured(self) -> list[str]:
        """List the names of the measures, in the order of tables."""
        return [name for name in MEASURES if self.values(name)]

    def values(self, measure: str) -> list[float]:
        """List the values; repetitions that lack the measure are left out.

        The measures of others' jobs are missing if no such job has started.
        """
        return [one[measure] for one in self.repetitions if measure in one]

    def estimate(self, measure: str) -> Estimate:
        return Estimate.of(self.values(measure))

    def mean(self, measure: str) -> float:
        return fmean(self.values(measure))

    def relative(self, other: Result, measure: str) -> Estimate:
        """Estimate the difference from another strategy, relative to the other's mean.

        Both strategies have the same draws in a repetition, so their differences vary less
        than their values.
        """
        pairs = zip(self.values(measure), other.values(measure), strict=True)
        mean = other.mean(measure)
        if not mean:
            return Estimate(0.0 if not self.mean(measure) else math.inf, 0.0)
        return Estimate.of([(value - reference) / mean for value, reference in pairs])

    def to_json(self) -> dict[str, JSON]:
        """Return the means, and the half widths of their confidence intervals if known."""
        measures: dict[str, JSON] = {}
        for name in self.measured():
            estimate = self.estimate(name)
            # a measure of a single repetition has no interval
            half_width = estimate.half_width if estimate.half_width < math.inf else None
            measures[name] = {"mean": estimate.mean, "ci95": half_width}
        return {
            "strategy": self.strategy.name,
            "settings": self.strategy.model_dump(exclude_none=True),
            "measures": measures,
        }


def run(
    workload: Workload, strategy: Strategy, recorded: Sequence[random_draws.Load]
) -> Result | str:
    """Simulate a strategy in all repetitions.

    :returns: the result, or an explanation if the cluster is too small for the strategy
    """
    repetitions = []
    for repetition in range(workload.repetitions):
        applications = random_draws.applications(workload, repetition)
        if repetition == 0 and (why := obstacle(workload, strategy, applications)):
            return why
        simulation = Simulation(workload, strategy, repetition, applications, recorded)
        repetitions.append(simulation.run())
    return Result(strategy, repetitions)


def obstacle(
    workload: Workload, strategy: Strategy, applications: Sequence[Application]
) -> str | None:
    """Explain why an application could never start; ``None`` if all can."""
    for application in applications:
        for name, nodes in strategy.holds(application).items():
            partition = workload.partitions.get(name)
            if partition is not None and nodes > partition.nodes:
                return (
                    f"holds {nodes} nodes of {name} at the same time, "
                    f"but {name} has {partition.nodes}"
                )
    return None


class Simulation:
    """One repetition with one strategy."""

    def __init__(
        self,
        workload: Workload,
        strategy: Strategy,
        repetition: int,
        applications: Sequence[Application],
        recorded: Sequence[random_draws.Load],
    ) -> None:
        self._workload = workload
        self._strategy = strategy
        self._applications = applications
        env = simpy.Environment()
        vqpus = {
            name: strategy.vqpus or qpu.vqpus for name, qpu in workload.qpus.items()
        }
        partitions = {name: one.nodes for name, one in workload.partitions.items()}
        licences = {licence(name): number for name, number in vqpus.items()}
        qpus = {
            name: QpuService(
                env,
                _device(qpu),
                vqpus[name],
                policy=PolicyChoice(qpu.policy.type, qpu.policy.model_extra or {}),
                shares=qpu.shares,
                seed=f"{workload.seed} {repetition} {name}",
            )
            for name, qpu in workload.qpus.items()
        }
        cluster = Cluster(env, partitions, licences, workload.scheduling)
        self._site = Site(
            env,
            cluster,
            qpus,
            workload.overheads,
            {name: one.queue() for name, one in workload.partitions.items()},
            random.Random(f"{workload.seed} {repetition} overheads"),
            {
                name: simpy.Resource(env, one.most_jobs)
                for name, one in workload.partitions.items()
                if one.most_jobs is not None
            },
        )
        self.others = random_draws.Others(workload, repetition, self._site)
        self.others.start(recorded)

    def run(self) -> dict[str, float]:
        """Run all applications to their ends, and measure them."""
        env = self._site.env
        outcomes = [Outcome(one.arrival) for one in self._applications]
        begin = self._applications[0].arrival
        if begin > 0:
            env.run(until=begin)
        before = {name: qpu.busy_seconds() for name, qpu in self._site.qpus.items()}
        for qpu in self._site.qpus.values():
            qpu.usage.forget_gaps()
        runs = [
            env.process(self._run(one, outcome))
            for one, outcome in zip(self._applications, outcomes, strict=True)
        ]
        env.run(simpy.AllOf(env, runs))
        return {
            **self._of_applications(outcomes),
            **self._of_nodes(outcomes),
            **self._of_qpus(before, env.now - begin),
            **self._of_others(),
        }

    def _run(self, application: Application, outcome: Outcome) -> Process:
        env = self._site.env
        yield env.timeout(application.arrival - env.now)
        yield from self._strategy.run(self._site, application, outcome)
        outcome.ended = env.now

    def _of_applications(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        pairs = [*zip(self._applications, outcomes, strict=True)]
        begin = min(outcome.submitted for outcome in outcomes)
        return {
            "wall": fmean(outcome.wall for outcome in outcomes),
            "wait": fmean(outcome.wall - one.seconds for one, outcome in pairs),
            "slowdown": fmean(outcome.wall / one.seconds for one, outcome in pairs),
            "makespan": max(outcome.ended for outcome in outcomes) - begin,
        }

    def _of_nodes(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Measure the resources that the applications have used and held, per run."""
        quantum = {qpu.partition for qpu in self._workload.qpus.values()}
        classical_seconds = quantum_seconds = joules = price = 0.0
        for name, partition in self._workload.partitions.items():
            held = fmean(outcome.nodes.held.get(name, 0.0) for outcome in outcomes)
            busy = fmean(outcome.nodes.busy.get(name, 0.0) for outcome in outcomes)
            if name in quantum:
                quantum_seconds += held
            else:
                classical_seconds += held
            joules += busy * partition.watts + (held - busy) * partition.idle_watts
            price += held / HOUR * partition.price
        qpu_seconds = lease_seconds = 0.0
        for name, qpu in self._workload.qpus.items():
            used = fmean(
                sum(sum(step.jobs) for step in one.quantum_steps() if step.qpu == name)
                for one in self._applications
            )
            leased = fmean(outcome.leased.get(name, 0.0) for outcome in outcomes)
            qpu_seconds += used
            lease_seconds += leased
            price += (used * qpu.price + leased * qpu.lease_price) / HOUR
        return {
            "node-seconds": classical_seconds,
            "quantum-node-seconds": quantum_seconds,
            "qpu-seconds": qpu_seconds,
            "lease-seconds": lease_seconds,
            "energy": joules / HOUR,
            "cost": price,
        }

    def _of_qpus(self, before: Mapping[str, float], seconds: float) -> dict[str, float]:
        if not before:
            return {}
        busy, gaps = [], []
        for name, busy_before in before.items():
            qpu = self._site.qpus[name]
            busy.append(qpu.busy_seconds() - busy_before)
            gaps += qpu.usage.gaps
        return {
            "utilisation": fmean(busy) / seconds,
            "gap": fmean(gaps) if gaps else 0.0,
        }

    def _of_others(self) -> dict[str, float]:
        if not (waits := self.others.waits):
            return {}
        slowdowns = (
            max(1.0, (wait + run) / max(run, SHORT_SECONDS)) for wait, run in waits
        )
        return {
            "others-wait": fmean(wait for wait, _ in waits),
            "others-slowdown": fmean(slowdowns),
        }


def _device(qpu: Qpu) -> Device:
    calibration, failures = qpu.calibration, qpu.failures
    return Device(
        calibration_every=calibration.every_seconds if calibration else math.inf,
        calibration_seconds=calibration.seconds if calibration else 0.0,
        windows=[
            Window(one.at_seconds, one.seconds, one.every_seconds or math.inf)
            for one in qpu.maintenance
        ],
        between_failures=failures.between_seconds if failures else math.inf,
        repair_seconds=failures.repair_seconds if failures else 0.0,
    )
