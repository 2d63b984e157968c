"""``sfq.candidate``: the binding filter that chooses a target for each attempt."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Mapping, MutableMapping, MutableSequence, Sequence
from contextlib import suppress
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
from sf_quantum.candidates.attempts import Attempt, Attempts, Capacity, shared_state
from sf_quantum.candidates.decision import (
    CandidateJob,
    Decision,
    Exclusion,
    FilterRules,
    Impossible,
    Obstacle,
    QuantumTarget,
    StepRules,
    awaits_usage,
    brief,
    decide,
    describe,
    explain,
    is_trouble,
    needs_usage,
)
from sf_quantum.candidates.forecast import Forecast, QueueForecasts
from sf_quantum.candidates.overruns import OverrunWatch
from sf_quantum.candidates.remarks import Remarks
from sf_quantum.candidates.targets import (
    StatusPoller,
    StatusReply,
    attempts_allowed,
    capacities,
    status_source,
    target_name,
)
from sf_quantum.connectors import exit_codes, hints
from sf_quantum.connectors.hints import JobHints
from sf_quantum.connectors.tracebacks import traceback_filter
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.journal import events, scheduler
from sf_quantum.journal.failures import why
from sf_quantum.protocol.leases import A_TIME
from sf_quantum.qpu import DEFAULT_READS, JobSize, QpuStatus
from sf_quantum.text import utc

# lines of a StreamFlow file with the journal, and with a failure manager, for messages
JOURNAL = "scheduling: {scheduler: {type: sfq.journal, config: {}}}"
MANAGER = "failureManager: {type: default, config: {max_retries: 3}}"
# name of the input with the number of reads, unless the filter's configuration names another
READS = "reads"
# Pause between two checks of the usage of running jobs.
USAGE_SECONDS = 1.0
# maximum number of characters of a failed command's message
LONGEST = 300


class CandidateFilter(BindingFilter):
    """Chooses the target of each attempt, so that a failed QPU does not stop the step.

    The parameters are the keys of the configuration; see ``schemas/candidate.json``.
    """

    def __init__(
        self,
        name: str,
        prefer: str = "quantum",
        forecast: str = "journal",
        maxWait: float | None = None,
        latestStart: str | None = None,
        maxVariables: int | None = None,
        minVariables: int | None = None,
        variables: str | None = None,
        onFailure: str = "fallback",
        expectedSeconds: float | None = None,
        pattern: str | None = None,
        priority: int | None = None,
        reservation: str | None = None,
        budget: MutableMapping[str, float] | None = None,
        costs: MutableMapping[str, float] | None = None,
        cooldown: float = 60,
        timeout: float = 2,
        mixed: str = "warn",
        reads: str | None = None,
        qpuJobs: int = 1,
        reuseClassical: bool = False,
        steps: MutableMapping[str, MutableMapping[str, JSON]] | None = None,
    ) -> None:
        super().__init__(name)
        self._rules = FilterRules(
            {
                "prefer": prefer,
                "forecast": forecast,
                "maxWait": maxWait,
                "latestStart": latestStart,
                "maxVariables": maxVariables,
                "minVariables": minVariables,
                "variables": variables,
                "onFailure": onFailure,
                "expectedSeconds": expectedSeconds,
                "pattern": pattern,
                "priority": priority,
                "reservation": reservation,
                "mixed": mixed,
                "reads": reads,
                "qpuJobs": qpuJobs,
                "reuseClassical": reuseClassical,
                "budget": {**budget} if budget else None,
                "steps": {step: {**entry} for step, entry in (steps or {}).items()},
            }
        )
        if (text := next(iter(self._rules.wrong_times.values()), None)) is not None:
            raise WorkflowDefinitionException(
                f"Filter {name}: latestStart: {text}: expected {A_TIME}"
            )
        self._timeout = timeout
        self._poller = StatusPoller(cooldown)
        self._forecasts = QueueForecasts()
        self._attempts = Attempts(costs or {}, cooldown, shared_state())
        self._remarks = Remarks(name, self._attempts)
        self._budgets = OverrunWatch(name, self._attempts, self._remarks, timeout)

    async def get_targets(
        self, job: Job, targets: MutableSequence[Target]
    ) -> MutableSequence[Target]:
        """Choose the target of a job's next attempt.

        :returns: one quantum target, or the classical targets that may run the job
        :raises UnrecoverableWorkflowException: if no target can run the job, or if the
            configuration forbids a retry
        :raises WorkflowDefinitionException: if the configuration does not match the step
        """
        began = waits_since = time.monotonic()
        step = get_job_step_name(job.name)
        rules = self._rules.of(step)
        max_wait = rules.longest_wait(time.time())
        wait_limit = math.inf if max_wait is None else max_wait
        self._check_configuration(rules)
        attempt = self._attempts.begin(job.name, step, rules)
        self._refuse_retry(attempt)
        by_name = {target_name(target): target for target in targets}
        attempt.size = _size(self.name, job, rules)
        while True:
            decision, qpus, replies, forecasts = await self._decide(attempt, by_name)
            if needs_usage(rules, decision):
                # Only QPUs may run the job, so its wait for the usage has no limit, and
                # maxWait applies only afterwards.
                waits_since = time.monotonic()
            # If a classical target may run the job, maxWait includes the wait for the usage.
            elif not awaits_usage(rules, decision) or (
                waits_since + wait_limit < time.monotonic()
            ):
                break
            await self._attempts.wait_for_job_end(USAGE_SECONDS)
        counts = self._attempts.counts_by_kind(step)
        self._refuse_wait(attempt, decision)
        self._remarks.warn_of_mixing(attempt, decision, counts)
        self._record_start(attempt, decision, waits_since)
        states = [_journal_entry(qpu, replies.get(qpu.name)) for qpu in qpus]
        waits = {name: one.wait for name, one in forecasts.items() if one.asked}
        seconds = time.monotonic() - began
        _report(
            attempt,
            decision,
            seconds,
            states,
            waits,
            self._remarks.on_hints(attempt, qpus),
        )
        return [by_name[name] for name in decision.targets]

    async def why_not_reused(
        self, job: Job, targets: Sequence[Target], target: Target
    ) -> str:
        """Return why a resumed run does not reuse a job's result; empty if it does.

        A classical result is not reused if QPUs are preferred and a QPU would accept the job
        now, unless ``reuseClassical`` is set. With ``mixed: refuse``, a result is never reused
        if other jobs of the step ran on the other kind of target.
        """
        step, name = get_job_step_name(job.name), target_name(target)
        rules = self._rules.of(step)
        quantum = status_source(target, _folder()) is not None
        others = (
            self._attempts.counts_by_kind(step) if rules.mixed == "refuse" else (0, 0)
        )
        if others[quantum]:  # other jobs ran on the other kind of target
            kind = "classical targets" if quantum else "QPUs"
            return f"it ran on {name}, and others of its step on {kind} (mixed: refuse)"
        if not quantum and rules.prefer == "quantum" and not rules.reuses_classical:
            attempt = Attempt(job.name, step, rules, size=_size(self.name, job, rules))
            by_name = {target_name(other): other for other in targets}
            decision: Decision | None = None
            with suppress(UnrecoverableWorkflowException):  # no target fits now
                decision, *_ = await self._decide(attempt, by_name)
            if decision is not None and decision.quantum:
                return f"it ran on {name}, and {explain(decision)}"
        self._attempts.record_reuse(step, quantum)
        return ""

    async def _decide(
        self, attempt: Attempt, targets: Mapping[str, Target]
    ) -> tuple[
        Decision, list[QuantumTarget], dict[str, StatusReply], dict[str, Forecast]
    ]:
        """Query the targets' current state, and decide; return the decision and the state."""
        rules = attempt.rules
        replies, capacity, forecasts = await self._query(targets, attempt)
        self._remarks.warn_of_unknown_spending(rules, replies)
        qpus = [
            self._attempts.quantum_target(attempt, name, replies.get(name))
            for name in targets
            if name not in capacity
        ]
        counts = self._attempts.counts_by_kind(attempt.step)
        candidate = CandidateJob(
            variables=attempt.size.variables,
            attempt=attempt.number,
            attempts_allowed=attempts_allowed(),
            spending_known=self._attempts.history.is_read,
            run=self._attempts.spending(),
            step=self._attempts.spending(attempt.step),
            others=counts if rules.mixed == "refuse" else (0, 0),
        )
        classical = [
            self._attempts.classical_target(
                attempt, name, capacity[name], forecasts[name].seconds
            )
            for name in capacity
        ]
        try:
            decision = decide(rules, candidate, qpus, classical, now=time.time())
        except Impossible as error:
            raise UnrecoverableWorkflowException(
                f"No target can run job {attempt.job}: {error}"
            ) from error
        return decision, qpus, replies, forecasts

    async def _query(
        self, targets: Mapping[str, Target], attempt: Attempt
    ) -> tuple[dict[str, StatusReply], dict[str, Capacity], dict[str, Forecast]]:
        """Query QPUs and classical targets for their state, and update the history."""
        folder = _folder()
        sources = {
            name: source
            for name, target in targets.items()
            if (source := status_source(target, folder, attempt.size)) is not None
        }
        classical = [targets[name] for name in targets if name not in sources]
        # QPUs in cooldown are queried only if all targets are QPUs in cooldown.
        not_in_cooldown = {
            n: s for n, s in sources.items() if not self._attempts.cooldown_of(n)
        }
        predicted = classical if attempt.rules.predicts and sources else []
        queried = not_in_cooldown if not_in_cooldown or classical else sources
        replies, capacity, forecasts, _ = await asyncio.gather(
            self._poller.poll(queried, self._timeout, attempt.size),
            capacities(classical, self._attempts.running_on, self._timeout),
            self._forecasts.predict(predicted, self._timeout),
            self._attempts.history.update(self._timeout),
        )
        for name, reply in replies.items():
            self._remarks.warn_of_silence(name, reply)
        self._remarks.warn_of_forecasts(forecasts)
        unpredicted = {name: Forecast() for name in capacity.keys() - forecasts.keys()}
        return replies, capacity, forecasts | unpredicted

    @classmethod
    def get_schema(cls) -> str:
        return files(__package__).joinpath("schemas/candidate.json").read_text("utf-8")

    def _check_configuration(self, rules: StepRules) -> None:
        """Check that the StreamFlow file configures the journal and the failure manager."""
        if scheduler.current() is None:
            if rules.has_budget:
                raise WorkflowDefinitionException(
                    f"Filter {self.name} has a budget, and spending is recorded only in "
                    f"the run's journal: add {JOURNAL}"
                )
            manager = f" and, if there is none, {MANAGER}" if rules.fallback else ""
            self._remarks.warn(
                f"Filter {self.name} cannot learn run times and failures without the "
                f"run's journal: add {JOURNAL}{manager}"
            )
        elif rules.fallback and attempts_allowed() == 1:
            self._remarks.warn(
                f"Filter {self.name}: onFailure: fallback needs a failureManager; without "
                f"one, a job that fails on a QPU fails the workflow: add {MANAGER}"
            )

    def _refuse_retry(self, attempt: Attempt) -> None:
        """Fail a job if its earlier failures rule out another attempt."""
        failures = self._attempts.failures(attempt.job)
        if failures and not attempt.rules.fallback:
            target, failure = next(iter(failures.items()))
            raise UnrecoverableWorkflowException(
                f"Job {attempt.job} is not retried: {target} {describe(failure)}, and "
                f"filter {self.name} says onFailure: fail"
            )
        unfit = [
            failed for failed in failures.values() if failed.cause is Obstacle.UNFIT
        ]
        if unfit and len(failures) > len(unfit):
            raise UnrecoverableWorkflowException(
                _not_retried(attempt.job, unfit[0].detail)
            )

    def _refuse_wait(self, attempt: Attempt, decision: Decision) -> None:
        """Fail a job that would wait again for a QPU that did not start the job in time."""
        qpu, on_qpus = decision.qpu, decision.job.others[0]
        failed = qpu.failed if qpu is not None and decision.quantum else None
        if failed is not None and (
            failed.cause is Obstacle.TOO_LATE
            or (on_qpus and failed.cause is Obstacle.WAITED)
        ):
            raise UnrecoverableWorkflowException(
                f"No target is left for job {attempt.job}: {explain(decision)}"
            )

    def _record_start(self, attempt: Attempt, decision: Decision, since: float) -> None:
        """Record the target of an attempt, and pass the step's hints to the connector.

        :param since: time on the monotonic clock when the attempt began to wait for a QPU
        """
        self._attempts.record_start(attempt, decision)
        hints.discard(attempt.job)
        if decision.quantum:
            may_retry = attempt.rules.fallback and not decision.job.is_last_attempt
            has_alternative = decision.has_alternative and may_retry
            # If no other target may run the job, its wait has no limit, except if classical
            # targets are excluded because other jobs of the step ran on QPUs.
            is_limited = has_alternative or decision.job.others[0] > 0
            wait = attempt.rules.max_wait if is_limited else None
            job_hints = JobHints(attempt.rules.hints, wait, has_alternative, since)
            hints.put(attempt.job, job_hints)
            self._budgets.watch(attempt)
        if (run := scheduler.current()) is not None:
            run.observe(
                attempt.job, self._command_ended, self._attempts.record_completion
            )

    def _command_ended(self, job: str, status: int | None, output: str) -> None:
        """Record the end of a job's command, which the connector reports.

        :raises UnrecoverableWorkflowException: if a retry is pointless
        """
        run = scheduler.current()
        target = target_name(run.get_allocation(job).target) if run else ""
        # A tool may list 0 in CWL's permanentFailCodes, but this failure is not the target's.
        if status == 0 or exit_codes.is_success(status):
            self._attempts.record_exit(job, target)
            return
        error = (why(status, output) or "no error message")[:LONGEST]
        job_hints = hints.of(job)
        if status == InputError.exit_code:
            if not job_hints.has_alternative:
                summary = _not_retried(job, error)
                traceback_filter().expect(logging.ERROR, job, summary)
                raise UnrecoverableWorkflowException(summary)
            # Another target may accept the input.
            unfit = Exclusion(Obstacle.UNFIT, detail=error)
            self._attempts.rule_out(job, target, unfit)
        elif job_hints.waited_out and status in (None, QpuError.exit_code):
            waited = Exclusion(Obstacle.WAITED, limit=job_hints.wait_seconds or 0.0)
            if job_hints.latest_start is not None and job_hints.seconds_left != 0.0:
                latest = utc(job_hints.latest_start)
                waited = Exclusion(Obstacle.TOO_LATE, detail=latest)
            self._attempts.rule_out(job, target, waited)
        elif status in (None, QpuError.exit_code):
            cause = Obstacle.SLURM_REFUSED if job_hints.refused else Obstacle.FAILED
            self._attempts.record_failure(job, target, error, cause)
        else:
            self._attempts.record_exit(job, target, error)
        if status is not None:
            error = f"exit status {status}, {error}"
        limit = attempts_allowed()
        if limit is None or self._attempts.attempt_number(job) < limit:
            summary = f"{job} failed on {target} and is retried: {error}"
            traceback_filter().expect(logging.WARNING, job, summary)


def _size(filter_name: str, job: Job, rules: StepRules) -> JobSize:
    """Return the size of a job's problem and its number of reads, from its inputs."""
    variables = _input(filter_name, job, "variables", rules.variables)
    reads = _input(filter_name, job, "reads", rules.reads)
    if rules.reads is None and READS in job.inputs:
        value = job.inputs[READS].value
        reads = value if type(value) is int else None
    return JobSize(variables, DEFAULT_READS if reads is None else max(1, reads))


def _input(filter_name: str, job: Job, key: str, name: str | None) -> int | None:
    """Return the value of an input that the filter's configuration names."""
    if name is None:
        return None
    step = get_job_step_name(job.name)
    if name not in job.inputs:
        # an input with the value null may be of type ``int?``
        values = {name: token.value for name, token in job.inputs.items()}
        ints = sorted(n for n, v in values.items() if v is None or type(v) is int)
        suggestion = f", one of: {', '.join(ints)}" if ints else ""
        raise WorkflowDefinitionException(
            f"Filter {filter_name}: the tool of step {step} has no input {name}; "
            f"{key} must name an int input of the tool{suggestion}"
        )
    value = job.inputs[name].value
    if value is not None and type(value) is not int:
        raise WorkflowDefinitionException(
            f"Filter {filter_name}: input {name} of step {step} is not an int; "
            f"{key} must name an int input"
        )
    return value


def _not_retried(job: str, error: str) -> str:
    return f"Job {job} is not retried, because its input is invalid: {error}"


def _folder() -> Path:
    """Return the StreamFlow file's folder, the base of relative paths in configurations."""
    record = journal.current()
    return record.file.absolute().parent if record is not None else Path.cwd()


def _report(
    attempt: Attempt,
    decision: Decision,
    seconds: float,
    states: list[events.QueriedQpu],
    forecasts: dict[str, events.PredictedWait],
    remark: str,
) -> None:
    """Log a decision, and write it into the run's journal."""
    reason = "; ".join(filter(None, (explain(decision), remark)))
    if logger.isEnabledFor(logging.INFO):
        logger.info(f"{attempt.job} on {' or '.join(decision.targets)}: {reason}")
    if (record := journal.current()) is not None:
        record.write(
            events.Decision(
                job=attempt.job,
                step=attempt.step,
                tag=get_job_tag(attempt.job),
                attempt=attempt.number,
                quantum=decision.quantum,
                targets=list(decision.targets),
                reason=reason,
                brief=brief(attempt.rules, decision),
                trouble=is_trouble(attempt.rules, decision),
                mixed=attempt.rules.mixed,
                seconds=seconds,
                asked=states,
                forecasts=forecasts,
                variables=attempt.size.variables,
                reads=attempt.size.reads,
            )
        )


def _journal_entry(qpu: QuantumTarget, reply: StatusReply | None) -> events.QueriedQpu:
    """The state of a quantum target, and the status that its QPU reported."""
    return events.QueriedQpu(
        qpu.name,
        trouble=describe(qpu.offline) if qpu.offline else "",
        rests=describe(qpu.cooldown) if qpu.cooldown else "",
        failed=describe(qpu.failed) if qpu.failed else "",
        qubits=qpu.qubits,
        wait=qpu.wait,
        seconds=qpu.seconds,
        qpu_seconds=qpu.qpu_seconds,
        cost=qpu.cost,
        maintenance=qpu.maintenance,
        load=qpu.load,
        status=asdict(reply) if isinstance(reply, QpuStatus) else None,
    )
