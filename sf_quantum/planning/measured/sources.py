"""The sources of a plan's figures: journals, and defaults that were not measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sf_quantum.errors import InputError
from sf_quantum.files import JSON, listing, mapping
from sf_quantum.planning.measured.fitting import Fit, FittedPhase, Sample
from sf_quantum.planning.recommendation import figure
from sf_quantum.planning.simulation.site import Overheads
from sf_quantum.planning.workloads.workload import Workload

# significant digits of measured values
_DIGITS = 4
# shortest time of a phase, since times must be positive
_SHORTEST = 0.001


def in_seconds(value: float) -> float:
    """Round a measured time for files and tables, to the accuracy of measurements."""
    return float(f"{value:.{_DIGITS}g}")


@dataclass(frozen=True)
class Sources:
    """The sources of a plan's values.

    :param left_out: number of journals that were not used, by reason
    :param assumed: values that were not measured, other than overheads
    """

    fit: Fit | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    assumed: Sequence[str] = ()

    def lines(self, workload: Workload) -> list[str]:
        """Describe which values were measured, with their spread, and which are defaults."""
        text = []
        if self.fit is not None:
            text += [*_measured(self.fit)]
        if self.left_out:
            counts = ", ".join(f"{count} {why}" for why, count in self.left_out.items())
            text.append(f"journals left out: {counts}")
        defaults = [
            f"{name} {value:g}" for name, value in default_overheads(workload).items()
        ]
        if defaults := [*defaults, *self.assumed]:
            text.append(f"defaults, not measured on this site: {', '.join(defaults)}")
        return text

    def to_json(self) -> dict[str, JSON]:
        fit = self.fit
        return {
            "journals": 0 if fit is None else fit.runs,
            "left_out": dict(self.left_out),
            "assumed": [*self.assumed],
            "phases": (
                {} if fit is None else {one.step: _json(one) for one in fit.phases}
            ),
            "overheads": {} if fit is None else _samples(fit.overheads),
            "queues": {} if fit is None else _samples(fit.queues),
            "side_by_side": [] if fit is None else [*fit.side_by_side],
        }


def default_overheads(workload: Workload) -> dict[str, float]:
    """Return the overheads that the workload file does not set."""
    overheads = workload.overheads
    return {
        name: value
        for name, value in overheads.model_dump().items()
        if name.endswith("_seconds") and name not in overheads.model_fields_set
        # by default, an allocation has the overhead of a job
        if value is not None
    }


def overheads(fit: Fit) -> dict[str, JSON]:
    """Return the measured keys of a workload file's section ``overheads``."""
    keys: dict[str, JSON] = {}
    for name, sample in fit.overheads.items():
        keys[f"{name}_seconds"] = in_seconds(sample.seconds)
        if f"{name}_spread" in Overheads.model_fields:
            keys[f"{name}_spread"] = in_seconds(sample.spread)
    return keys


def measured(
    content: Mapping[str, JSON], fit: Fit
) -> tuple[dict[str, JSON], list[str]]:
    """Replace a workload file's values of steps with the values measured in journals.

    The file's nodes, partitions and QPUs are kept.

    :param content: content of a valid workload file
    :returns: the new content, and descriptions of phases that no journal contains
    :raises InputError: if no phase of the file names a step of the journals
    """
    fitted = {phase.step: phase for phase in fit.phases}
    qpus = mapping(content.get("qpus"))
    applications: dict[str, JSON] = {}
    unmeasured = []
    matched = False
    for name, application in mapping(content["applications"]).items():
        keys = dict(mapping(application))
        phases: list[JSON] = []
        loop = False
        for phase in map(mapping, listing(keys["phases"])):
            step_fit = fitted.get(str(phase.get("step")))
            if step_fit is None or (step_fit.qpu is None) != (phase.get("qpu") is None):
                phases.append(phase)
                unmeasured.append(f"phases of {name}: {phase.get('step') or 'no step'}")
                continue
            phases.append(_replaced(phase, step_fit, qpus))
            matched, loop = True, loop or step_fit.only is None
        keys["phases"] = phases
        if loop:
            keys["repeats"] = max(1, round(fit.repeats.seconds))
            keys["repeats_spread"] = in_seconds(fit.repeats.spread)
        applications[name] = keys
    if not matched:
        raise InputError(
            "no phase of the workload names, as its step, a step of the journals: "
            f"{', '.join(fitted)}"
        )
    measured_overheads = mapping(content.get("overheads")) | overheads(fit)
    return {
        **content,
        "applications": applications,
        "overheads": measured_overheads,
    }, unmeasured


# keys of a phase that a journal replaces
_MEASURED = (
    "seconds task_seconds tasks shots jobs spread between_seconds host_seconds".split()
)


def _replaced(
    phase: Mapping[str, JSON], fitted: FittedPhase, qpus: Mapping[str, JSON]
) -> dict[str, JSON]:
    kept = {key: value for key, value in phase.items() if key not in _MEASURED}
    keys = fitted.keys()
    setup = mapping(qpus.get(str(phase.get("qpu")))).get("setup_seconds")
    seconds = keys.get("seconds")
    if isinstance(setup, float | int) and isinstance(seconds, float):
        # the journal contains only the sum of set-up and shots
        keys["seconds"] = max(_SHORTEST, seconds - setup)
    return {**kept, **keys}


def _measured(fit: Fit) -> list[str]:
    """List the measured values, with their spread."""
    runs = "journal" if fit.runs == 1 else "journals"
    text = [f"measured in {fit.runs} {runs}:"]
    for phase in fit.phases:
        times = ", ".join(f"{seconds:.3g}" for seconds in phase.task_seconds)
        many = "" if phase.number == 1 else "s"
        text.append(
            f"  {phase.step}: {times} s, spread {_percent(phase.spread)}, "
            f"{phase.number} run{many}"
        )
    text += [f"  {name}_seconds: {_shown(one)}" for name, one in fit.overheads.items()]
    text += [
        f"  wait for nodes of {name}: {_shown(one)}" for name, one in fit.queues.items()
    ]
    if fit.side_by_side:
        steps = ", ".join(fit.side_by_side)
        text.append(f"  ran side by side, planned one after the other: {steps}")
    return text


def _shown(sample: Sample) -> str:
    return (
        f"{figure(sample.seconds, 2)} s, spread {_percent(sample.spread)}, "
        f"{sample.number} measurements"
    )


def _percent(spread: float) -> str:
    return f"{figure(100 * spread, 2)} %"


def _json(phase: FittedPhase) -> dict[str, JSON]:
    return {"runs": phase.number, **phase.keys()}


def _samples(samples: Mapping[str, Sample]) -> dict[str, JSON]:
    return {
        name: {"seconds": one.seconds, "spread": one.spread, "number": one.number}
        for name, one in samples.items()
    }
