"""What a run of a StreamFlow file would do if it began now; nothing is submitted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from streamflow.core.deployment import Target

from sf_quantum.candidates.attempts import Attempts, Capacity, History, earlier_runs
from sf_quantum.candidates.decision import (
    CandidateJob,
    Exclusion,
    FilterRules,
    Impossible,
    decide,
    describe,
    explain,
)
from sf_quantum.candidates.targets import (
    StatusPoller,
    StatusReply,
    status_source,
    target_name,
)
from sf_quantum.checking.deployments import Binding, Deployments
from sf_quantum.checking.document import Document
from sf_quantum.checking.schema import rules
from sf_quantum.checking.targets import SECONDS, TYPE, Qpus, problem_size
from sf_quantum.checking.workflows import Workflow
from sf_quantum.files import JSON, listing, mapping, number
from sf_quantum.qpu import QpuStatus
from sf_quantum.reporting.columns import align

#: where StreamFlow runs a step that no binding names
LOCAL = "local"
_QPU_HEADER = "QPU, technology, state, qubits, leases, jobs queued, starts in".split(
    ", "
)
_NUMBERS = _QPU_HEADER[3:]


@dataclass(frozen=True)
class StepPreview:
    """The targets on which a step would run.

    :param targets: candidates, of which the first with a free slot gets a job; empty if
        no target can run it
    :param why: the reason of a decision
    """

    workflow: str
    step: str
    targets: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True)
class Preview:
    """What a run would do if it began now.

    A quantum candidate is decided anew for each attempt of a job, from what its QPUs answer
    then. Here, nothing else runs: classical targets are free, and no budget is spent.

    :param qpus: the status of each QPU, by its target; text if it could not be asked
    """

    file: str
    steps: list[StepPreview]
    qpus: dict[str, QpuStatus | str]

    @property
    def ok(self) -> bool:
        """Whether there is a target for each step."""
        return all(step.targets for step in self.steps)

    def to_json(self) -> dict[str, JSON]:
        """The steps and QPUs, as ``sfq run --dry-run --json`` prints them."""
        return {
            "file": self.file,
            "ok": self.ok,
            "steps": [
                {**asdict(step), "targets": [*step.targets]} for step in self.steps
            ],
            "qpus": {
                name: (
                    asdict(reply)
                    if isinstance(reply, QpuStatus)
                    else {"trouble": reply}
                )
                for name, reply in self.qpus.items()
            },
        }

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        steps = [("step", "would run on", "why")]
        for step in self.steps:
            targets = " or ".join(step.targets) or "nothing"
            steps.append((step.step.lstrip("/"), targets, step.why))
        qpus = [_cells(name, status) for name, status in self.qpus.items()]
        tables = [align(steps)]
        tables += [align([_QPU_HEADER, *qpus], right=_NUMBERS)] if qpus else []
        return "\n\n".join("\n".join(lines) for lines in tables)


def preview(file: Path, journals: Path) -> Preview:
    """Ask the QPUs of a file that has no problem, and decide as its run would.

    :param journals: the folder of the journals of its runs, which tell run times
    """
    document = Document.read(file, "StreamFlow file", dates=True)
    deployments = Deployments(document, rules())
    qpus = Qpus(deployments)
    names = mapping(document.content.get("workflows"))
    workflows = [Workflow(name, qpus, None) for name in names]
    bound = [(one, step, one.bound(step)) for one in workflows for step in _steps(one)]
    targets = {
        target_name(target): target
        for _, _, binding in bound
        if binding is not None
        for target in deployments.targets(binding).values()
    }
    replies = _replies(targets, document.folder)
    history = History()
    history.add(earlier_runs(journals, file.resolve()))
    previews = []
    for workflow, step, binding in bound:
        chosen: tuple[str, ...] = (LOCAL,)
        if binding is None:
            why = "no binding names it"
        elif (filters := _candidates(document, binding)) is not None:
            chosen, why = _decided(workflow, step, binding, filters, replies, history)
        else:
            chosen = tuple(map(target_name, deployments.targets(binding).values()))
            why = ", ".join(map(str, listing(binding.content.get("filters"))))
            why = f"as the filter {why} says" if why else ""
        previews.append(StepPreview(str(workflow.where[-1]), step, chosen, why))
    answers = {
        name: describe(reply) if isinstance(reply, Exclusion) else reply
        for name, reply in replies.items()
    }
    return Preview(str(file), previews, answers)


def _steps(workflow: Workflow) -> Iterator[str]:
    """The steps that run a tool; those of bindings where the CWL could not be read."""
    tools = dict.fromkeys(tool.step for tool in workflow.process.tools)
    yield from tools or (b.path for b in workflow.bindings if b.kind == "step")


def _replies(targets: Mapping[str, Target], folder: Path) -> dict[str, StatusReply]:
    sources = {
        name: source
        for name, target in targets.items()
        if (source := status_source(target, folder)) is not None
    }
    if not sources:
        return {}
    return asyncio.run(StatusPoller(cooldown=0.0).poll(sources, SECONDS))


def _candidates(document: Document, binding: Binding) -> dict[str, JSON] | None:
    """The configuration of the binding's ``sfq.candidate``, if it has one."""
    filters = mapping(document.content.get("bindingFilters"))
    for name in map(str, listing(binding.content.get("filters"))):
        if mapping(filters.get(name)).get("type") == TYPE:
            return mapping(mapping(filters.get(name)).get("config"))
    return None


def _decided(
    workflow: Workflow,
    step: str,
    binding: Binding,
    config: dict[str, JSON],
    replies: Mapping[str, StatusReply],
    history: History,
) -> tuple[tuple[str, ...], str]:
    """The targets of the first attempt of a quantum candidate, and the reason."""
    step_rules, settings = FilterRules(config).of(step), workflow.read_settings()
    given = settings if isinstance(settings, Document) else None
    size = problem_size(workflow.deployments, workflow.process, given, binding)
    job = CandidateJob(
        variables=size or None if step_rules.variables else None, attempt=1
    )
    names = [*map(target_name, workflow.deployments.targets(binding).values())]
    attempts = Attempts(_costs(config), 0.0)
    attempts.history = history
    attempt = attempts.begin(step, step, step_rules)
    quantum = [
        attempts.quantum_target(attempt, name, replies[name])
        for name in names
        if name in replies
    ]
    classical = [
        attempts.classical_target(attempt, name, Capacity())
        for name in names
        if name not in replies
    ]
    try:
        decision = decide(step_rules, job, quantum, classical)
    except Impossible as error:
        return (), str(error)
    open_ = step_rules.variables and job.variables is None
    unknown = "; the size of the problem is known when it runs" if open_ else ""
    return decision.targets, f"{explain(decision)}{unknown}"


def _costs(config: dict[str, JSON]) -> dict[str, float]:
    return {name: number(cost) for name, cost in mapping(config.get("costs")).items()}


def _cells(name: str, status: QpuStatus | str) -> tuple[str, ...]:
    if isinstance(status, str):
        return name, "-", status, "-", "-", "-", "-"
    state = (
        "online" if status.online else f"closed ({status.reason or 'no reason given'})"
    )
    eta = status.eta_seconds
    return (
        name,
        status.technology,
        state,
        str(status.qubits or "-"),
        f"{status.leases} of {status.vqpus}",
        str(status.queue_length),
        "-" if eta is None else f"{eta:.1f} s",
    )
