"""Preview of a run of a StreamFlow file, as if it began now; nothing is submitted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from html import escape
from pathlib import Path

from sf_quantum.candidates.attempts import Attempts, Capacity, SharedState
from sf_quantum.candidates.decision import (
    CandidateJob,
    Exclusion,
    FilterRules,
    Impossible,
    StepRules,
    decide,
    describe,
    explain,
)
from sf_quantum.candidates.filter import READS
from sf_quantum.candidates.history import History, earlier_runs
from sf_quantum.candidates.targets import (
    StatusReply,
    target_name,
)
from sf_quantum.checking.bindings.binding import Binding
from sf_quantum.checking.deployments.references import Deployments
from sf_quantum.checking.document import Document
from sf_quantum.checking.qpus.availability import Qpus, poll
from sf_quantum.checking.qpus.problem_sizes import ProblemSizes
from sf_quantum.checking.schema import rules
from sf_quantum.checking.workflows import Workflow
from sf_quantum.files import JSON, listing, mapping, number
from sf_quantum.qpu import DEFAULT_READS, JobSize, QpuStatus
from sf_quantum.reporting.aligned import align
from sf_quantum.text import plural

#: name that is shown as the target of a step without a binding
LOCAL = "local"
# Parts of a job's size that may be unknown before the run.
PROBLEM_SIZE = "the size of the problem"
NUMBER_OF_READS = "the number of reads"
_QPU_HEADER = "QPU, technology, state, qubits, leases, jobs queued, starts in".split(
    ", "
)
_NUMBERS = _QPU_HEADER[3:]


@dataclass(frozen=True)
class StepPreview:
    """The targets on which a step would run.

    :param targets: possible targets; the first target with a free slot gets a job. Empty if
        no target can run the step
    :param why: reason for the choice
    """

    workflow: str
    step: str
    targets: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True)
class Preview:
    """The targets that a run would choose if it began now, and the state of its QPUs.

    A run chooses the target of a quantum candidate for each attempt of a job, based on the
    QPUs' replies at that time. The preview assumes that nothing else runs: classical targets
    are free, and no budget has been spent.

    :param qpus: status of each QPU, by target name; the reason as text if it could not be
        queried
    """

    file: str
    steps: list[StepPreview]
    qpus: dict[str, QpuStatus | str]

    @property
    def ok(self) -> bool:
        """Whether there is a possible target for each step."""
        return all(step.targets for step in self.steps)

    def to_json(self) -> dict[str, JSON]:
        """Return the steps and QPUs as ``sfq run --dry-run --json`` prints them."""
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
    """Query the QPUs of a file without problems, and choose targets as a run would.

    :param journals: folder with the journals of earlier runs, from which run times are
        estimated
    """
    document = Document.read(file, "StreamFlow file", dates=True)
    deployments = Deployments(document, rules())
    names = mapping(document.content.get("workflows"))
    workflows = [Workflow(name, deployments, Qpus(document), None) for name in names]
    bound = [
        (workflow, step, workflow.bound(step))
        for workflow in workflows
        for step in _steps(workflow)
    ]
    targets = [t for *_, b in bound if b is not None for t in b.targets.values()]

    @cache
    def replies(size: JobSize | None) -> dict[str, StatusReply]:
        # A QPU's reply depends on the size of the job: the estimated times, and the ETA.
        return poll(targets, document.folder, size)

    answers: dict[str, StatusReply] | None = None
    history = History()
    history.add(earlier_runs(journals, file.resolve()))
    previews = []
    for workflow, step, binding in bound:
        chosen: tuple[str, ...] = (LOCAL,)
        if binding is None:
            why = "no binding names it"
        elif candidates := binding.candidates:
            job = _Job.read(workflow, binding, FilterRules(candidates[0]).of(step))
            job = job.completed(history.size(step))
            sized = replies(job.size)
            chosen, why = _decide_targets(job, binding, candidates[0], sized, history)
            answers = answers or sized
        else:
            chosen = tuple(map(target_name, binding.targets.values()))
            why = ", ".join(map(str, listing(binding.content.get("filters"))))
            why = f"as the filter {why} says" if why else ""
        previews.append(StepPreview(str(workflow.where[-1]), step, chosen, why))
    statuses = {
        name: describe(reply) if isinstance(reply, Exclusion) else reply
        for name, reply in (answers or replies(None)).items()
    }
    return Preview(str(file), previews, statuses)


def _steps(workflow: Workflow) -> Iterator[str]:
    """Yield the steps that run a tool; if the CWL is unreadable, the steps with bindings."""
    tools = dict.fromkeys(tool.step for tool in workflow.process.host_commands)
    yield from tools or (b.path for b in workflow.bindings if b.kind == "step")


@dataclass(frozen=True)
class _Job:
    """The first job of a quantum candidate's step.

    :param unknown: parts of the size that are not known before the run
    :param assumed: values of such parts, from the last run
    """

    rules: StepRules
    size: JobSize
    unknown: list[str]
    assumed: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, workflow: Workflow, binding: Binding, rules: StepRules) -> _Job:
        """Read the size from the file of inputs, where the filter reads a job's inputs."""
        settings = workflow.read_settings()
        given = settings if isinstance(settings, Document) else None
        size = ProblemSizes(workflow.process, given).smallest(binding)
        variables = size or None if rules.variables else None
        unknown = [PROBLEM_SIZE] if rules.variables and not size else []
        reads, port = None, f"{binding.path}/{rules.reads or READS}"
        try:
            if port in workflow.process.taken:
                values = given.content if given is not None else {}
                reads = workflow.process.given(port, values)
        except LookupError:
            unknown.append(NUMBER_OF_READS)
        number_of_reads = max(1, reads) if type(reads) is int else DEFAULT_READS
        return cls(rules, JobSize(variables, number_of_reads), unknown)

    def completed(self, last: JobSize | None) -> _Job:
        """Return the job with the unknown parts of its size as in the last run.

        :param last: the size of the step's last job; None if it is unknown
        """
        if last is None:
            return self
        variables, reads, assumed = self.size.variables, self.size.reads, list[str]()
        if PROBLEM_SIZE in self.unknown and last.variables is not None:
            variables = last.variables
            assumed.append(plural(variables, "variable"))
        if NUMBER_OF_READS in self.unknown:
            reads = last.reads
            assumed.append(plural(reads, "read"))
        return replace(self, size=JobSize(variables, reads), assumed=assumed)


def _decide_targets(
    job: _Job,
    binding: Binding,
    config: dict[str, JSON],
    replies: Mapping[str, StatusReply],
    history: History,
) -> tuple[tuple[str, ...], str]:
    """Return the targets for a quantum candidate's first attempt, and the reason."""
    candidate = CandidateJob(variables=job.size.variables, attempt=1)
    names = [*map(target_name, binding.targets.values())]
    attempts = Attempts(_costs(config), 0.0, SharedState(history))
    attempt = attempts.begin(binding.path, binding.path, job.rules)
    attempt.size = job.size
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
        decision = decide(job.rules, candidate, quantum, classical, now=time.time())
    except Impossible as error:
        return (), str(error)
    late = [f"{what} is known when it runs" for what in job.unknown]
    if job.assumed:
        late.append(f"assumed as in the last run: {', '.join(job.assumed)}")
    return decision.targets, "; ".join([explain(decision), *late])


def _costs(config: dict[str, JSON]) -> dict[str, float]:
    return {name: number(cost) for name, cost in mapping(config.get("costs")).items()}


def _cells(name: str, status: QpuStatus | str) -> tuple[str, ...]:
    """Return the cells of a QPU's row."""
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
