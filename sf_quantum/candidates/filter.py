"""``sfq.candidate``: what StreamFlow asks where each attempt of a candidate is to go."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, MutableMapping, MutableSequence
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

from streamflow.core.deployment import BindingFilter, Target
from streamflow.core.exception import (
    UnrecoverableWorkflowException,
    WorkflowDefinitionException,
)
from streamflow.core.utils import get_job_step_name, get_job_tag
from streamflow.core.workflow import Job
from streamflow.log_handler import logger

from sf_quantum import journal
from sf_quantum.candidates import asking, places, saying
from sf_quantum.candidates.asking import Answer, Asker, Source
from sf_quantum.candidates.decision import (
    Classical,
    Decision,
    Impossible,
    Quantum,
    Question,
    decide,
)
from sf_quantum.candidates.ledger import Asked, Ledger
from sf_quantum.candidates.policy import Budget, Policies, Policy
from sf_quantum.connectors import hints
from sf_quantum.connectors.hints import JobHints
from sf_quantum.connectors.observed_connector import JobEnd
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.journal import scheduler
from sf_quantum.qpu import QpuStatus

JOURNAL = "scheduling: {scheduler: {type: sfq.journal, config: {}}}"
MANAGER = "failureManager: {type: default, config: {max_retries: 3}}"


class CandidateFilter(BindingFilter):
    """Decides for each attempt, so that the step ends whatever becomes of a QPU.

    The parameters are the configuration's; see ``schemas/candidate.json``.
    """

    def __init__(
        self,
        name: str,
        prefer: str = "quantum",
        maxWait: float | None = None,
        maxVariables: int | None = None,
        minVariables: int | None = None,
        variables: str | None = None,
        onFailure: str = "fallback",
        expectedSeconds: float | None = None,
        pattern: str | None = None,
        budget: MutableMapping[str, float] | None = None,
        costs: MutableMapping[str, float] | None = None,
        cooldown: float = 60,
        timeout: float = 2,
        steps: MutableMapping[str, MutableMapping[str, JSON]] | None = None,
    ) -> None:
        super().__init__(name)
        config: dict[str, JSON] = {
            "prefer": prefer,
            "maxWait": maxWait,
            "maxVariables": maxVariables,
            "minVariables": minVariables,
            "variables": variables,
            "onFailure": onFailure,
            "expectedSeconds": expectedSeconds,
            "pattern": pattern,
            "budget": {**budget} if budget else None,
            "steps": {step: {**own} for step, own in (steps or {}).items()},
        }
        self._policies = Policies(config)
        self._timeout = timeout
        self._asker = Asker(cooldown)
        self._ledger = Ledger(costs or {}, cooldown)
        self._warned: set[str] = set()

    async def get_targets(
        self, job: Job, targets: MutableSequence[Target]
    ) -> MutableSequence[Target]:
        """Choose the target of a job's next attempt.

        :returns: one quantum target, or the classical ones that may take it
        :raises UnrecoverableWorkflowException: if no target can take it, or it is not to
            be tried again
        :raises WorkflowDefinitionException: if the filter cannot do what it is told
        """
        began = time.monotonic()
        step = get_job_step_name(job.name)
        policy = self._policies.of(step)
        self._check(policy)
        asked = self._ledger.ask(job.name, step, policy)
        self._refuse_again(asked)
        by_name = {asking.name(target): target for target in targets}
        sources = self._sources(by_name)
        others = [by_name[name] for name in by_name if name not in sources]
        answers, room, _ = await asyncio.gather(
            self._asker.ask(self._awake(sources, others), self._timeout),
            places.rooms(others, self._ledger.sent_to, self._timeout),
            self._ledger.update(self._timeout),
        )
        self._warn_of_silence(answers)
        self._warn_of_spending(policy, answers)
        size = self._variables(job, policy)
        quantum = [self._ledger.quantum(asked, n, answers.get(n)) for n in sources]
        classical = [self._ledger.classical(asked, n, room[n]) for n in room]
        decision = self._decide(asked, size, quantum, classical)
        self._send(asked, decision, elsewhere=len(by_name) > 1)
        self._tell(asked, decision, time.monotonic() - began, answers, quantum)
        return [by_name[name] for name in decision.targets]

    @classmethod
    def get_schema(cls) -> str:
        """What ``config`` may hold.

        :returns: the JSON Schema
        """
        return files(__package__).joinpath("schemas/candidate.json").read_text("utf-8")

    def _check(self, policy: Policy) -> None:
        """Say what is missing in the StreamFlow file."""
        if scheduler.current() is None:
            if policy.run != Budget() or policy.step != Budget():
                raise WorkflowDefinitionException(
                    f"Filter {self.name} has a budget, of which only the run's journal "
                    f"keeps account: add {JOURNAL}"
                )
            others = f" and, if there is none, {MANAGER}" if policy.fallback else ""
            self._warn(
                f"Filter {self.name} knows nothing of how long jobs took, nor how they "
                "fail and whether they are tried again, without the run's journal: add "
                f"{JOURNAL}{others}"
            )
        elif policy.fallback and places.attempts_allowed() == 1:
            self._warn(
                f"Filter {self.name}: onFailure: fallback needs a failureManager, so a "
                f"job that fails on a QPU fails the workflow: add {MANAGER}"
            )

    def _refuse_again(self, asked: Asked) -> None:
        failures = self._ledger.failures(asked.job)
        if failures and not asked.policy.fallback:
            target, words = next(iter(failures.items()))
            raise UnrecoverableWorkflowException(
                f"Job {asked.job} failed on {target} ({words}) and is not tried again: "
                f"filter {self.name} says onFailure: fail"
            )

    def _sources(self, targets: Mapping[str, Target]) -> dict[str, Source]:
        record = journal.current()
        folder = record.file.absolute().parent if record is not None else Path.cwd()
        found = {name: asking.source(targets[name], folder) for name in targets}
        return {name: source for name, source in found.items() if source is not None}

    def _awake(
        self, sources: dict[str, Source], others: list[Target]
    ) -> dict[str, Source]:
        """The QPUs that are asked: not those that rest, unless there is nobody else."""
        awake = {n: s for n, s in sources.items() if not self._ledger.rests(n)}
        return awake if awake or others else sources

    def _warn_of_silence(self, answers: Mapping[str, Answer]) -> None:
        for name, answer in answers.items():
            if isinstance(answer, str) and logger.isEnabledFor(logging.WARNING):
                logger.warning(f"QPU {name} {answer}; it counts as offline")

    def _warn_of_spending(self, policy: Policy, answers: Mapping[str, Answer]) -> None:
        if policy.run.cost is not None or policy.step.cost is not None:
            for name, answer in answers.items():
                if isinstance(answer, QpuStatus) and not self._has_cost(name, answer):
                    self._warn(
                        f"Filter {self.name}: what a second of QPU {name} costs is not "
                        f"known, so budget: cost sets no limit there: add costs: "
                        f"{{{name}: ...}}"
                    )
        if policy.run != Budget() or policy.step != Budget():
            for name in sorted(self._ledger.silent):
                self._warn(
                    f"Filter {self.name}: QPU {name} does not tell what jobs spend on "
                    "it, so the budget does not know of them"
                )

    def _has_cost(self, name: str, answer: QpuStatus) -> bool:
        return answer.cost_per_second is not None or self._ledger.has_cost(name)

    def _variables(self, job: Job, policy: Policy) -> int | None:
        name = policy.variables
        if name is None:
            return None
        if name not in job.inputs:
            raise WorkflowDefinitionException(
                f"Filter {self.name}: step {get_job_step_name(job.name)} has no input "
                f"{name}; variables must name an int input, one of: "
                f"{', '.join(sorted(job.inputs))}"
            )
        value = job.inputs[name].value
        if value is not None and type(value) is not int:
            raise WorkflowDefinitionException(
                f"Filter {self.name}: input {name} of step "
                f"{get_job_step_name(job.name)} is no int; variables must name one"
            )
        return value

    def _decide(
        self,
        asked: Asked,
        variables: int | None,
        quantum: list[Quantum],
        classical: list[Classical],
    ) -> Decision:
        question = Question(
            variables=variables,
            last=asked.attempt > 1 and self._is_last(asked),
            run=self._ledger.spent(),
            step=self._ledger.spent(asked.step),
            known=self._ledger.known,
        )
        try:
            return decide(asked.policy, question, quantum, classical)
        except Impossible as error:
            raise UnrecoverableWorkflowException(
                f"Job {asked.job} can run nowhere: {error}"
            ) from error

    def _is_last(self, asked: Asked) -> bool:
        most = places.attempts_allowed()
        return most is not None and asked.attempt >= most

    def _send(self, asked: Asked, decision: Decision, *, elsewhere: bool) -> None:
        """Take note of where the job goes, and tell the connector how to treat it."""
        self._ledger.send(asked, decision)
        hints.discard(asked.job)
        if decision.quantum:
            elsewhere = elsewhere and asked.policy.fallback and not self._is_last(asked)
            # who has nowhere else to go waits as long as it takes
            wait = asked.policy.max_wait if elsewhere else None
            hints.put(asked.job, JobHints(asked.policy.hints, wait, elsewhere))
        if (run := scheduler.current()) is not None:
            run.observe(asked.job, self._ended, self._ledger.complete)

    def _ended(self, job: str, ending: JobEnd) -> None:
        """Take note of a job's end; called by its connector.

        :raises UnrecoverableWorkflowException: if trying again is no use
        """
        run = scheduler.current()
        target = asking.name(run.get_allocation(job).target) if run else ""
        if ending.status == 0:
            self._ledger.end(job, target)
            return
        words = saying.words(ending.output)
        if ending.status == InputError.exit_code:
            sentence = f"Job {job} has bad input, so it is not tried again: {words}"
            saying.one_line().expect(logging.ERROR, job, sentence)
            raise UnrecoverableWorkflowException(sentence)
        if ending.status in (None, QpuError.exit_code):
            self._ledger.fail(job, target, words)
        else:  # CWL's successCodes may say otherwise
            self._ledger.doubt(job, target, words)
        if ending.status is not None:
            words = f"exit status {ending.status}, {words}"
        most, attempt = places.attempts_allowed(), self._ledger.attempts(job)
        if most is None or attempt < most:
            sentence = f"{_shown(job)} failed on {target} and is tried again: {words}"
            saying.one_line().expect(logging.WARNING, job, sentence)

    def _tell(
        self,
        asked: Asked,
        decision: Decision,
        seconds: float,
        answers: Mapping[str, Answer],
        quantum: list[Quantum],
    ) -> None:
        where = " or ".join(decision.targets)
        if logger.isEnabledFor(logging.INFO):
            logger.info(f"{_shown(asked.job)} on {where}: {decision.reason}")
        if (record := journal.current()) is not None:
            record.write(
                "decision",
                job=asked.job,
                step=asked.step,
                tag=get_job_tag(asked.job),
                attempt=asked.attempt,
                quantum=decision.quantum,
                targets=list(decision.targets),
                reason=decision.reason,
                seconds=seconds,
                asked=[_asked(target, answers.get(target.name)) for target in quantum],
            )

    def _warn(self, sentence: str) -> None:
        if sentence not in self._warned and logger.isEnabledFor(logging.WARNING):
            self._warned.add(sentence)
            logger.warning(sentence)


def _asked(target: Quantum, answer: Answer | None) -> dict[str, JSON]:
    """What a QPU said, and what was made of it, for the journal."""
    status = asdict(answer) if isinstance(answer, QpuStatus) else None
    return {**asdict(target), "status": status}


def _shown(job: str) -> str:
    return f"{get_job_step_name(job).removeprefix('/')} {get_job_tag(job)}"
