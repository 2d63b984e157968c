"""Simulates the allocations that ``elastic`` holds, with the rules that ``sfq.slurm`` uses."""

from __future__ import annotations

import math
from collections import deque
from typing import cast

import simpy

from sf_quantum.connectors.slurm.allocation.elastic_rules import (
    ElasticPool,
    ElasticSettings,
)
from sf_quantum.planning.simulation.application import Application, Outcome, Task
from sf_quantum.planning.simulation.cluster import Allocation
from sf_quantum.planning.simulation.qpu import Process
from sf_quantum.planning.simulation.site import Site


class ElasticAllocations:
    """The allocations of an application for tasks of one partition and size.

    After every event, :meth:`_balance` adjusts the allocations to the demand. The time limit
    of an allocation is the user's estimate for the application. After this time, the
    allocation is released as soon as it is idle, so that applications never wait forever for
    each other's idle nodes. The forecast uses observations from earlier runs of the same
    application.

    :param task: any of the tasks
    """

    def __init__(
        self,
        site: Site,
        application: Application,
        outcome: Outcome,
        settings: ElasticSettings,
        task: Task,
    ) -> None:
        self._site = site
        self._outcome = outcome
        self._task = task
        self._estimate = application.estimate()
        self._pool: ElasticPool[Allocation] = ElasticPool(settings)
        self._forecast = self._pool.forecast
        self._forecast_key = application.name, task.partition, task.nodes, task.least
        if settings.ahead and self._forecast_key in site.forecasts:
            self._forecast.learn(site.forecasts[self._forecast_key])
        # the grants that tasks wait for, and the start of each wait
        self._wanted: deque[tuple[simpy.Event, float]] = deque()
        # pending requests; the only key is None, for requests without a dependency
        self._requests: dict[str | None, list[simpy.Process]] = {}
        # busy allocations that have reached their time limit
        self._past_limit: set[Allocation] = set()
        self._timer_at = math.inf
        self._closed = False

    def run(self, step: str, task: Task) -> Process:
        """Run a task of a step on a free allocation, or on a new one."""
        env = self._site.env
        granted = env.event()
        self._pool.job_arrived(env.now)
        self._wanted.append((granted, env.now))
        self._balance()
        yield granted
        allocation = cast("Allocation", granted.value)
        self._pool.job_began(allocation, step, env.now)
        yield env.timeout(self._site.resume_seconds())
        yield from self._site.compute(task, allocation, self._outcome)
        if allocation in self._past_limit:
            self._give_back(allocation)
        else:
            self._pool.make_free(allocation, env.now)
        self._balance()
        self._forecast.job_ended()
        self._balance()

    def quantum_step_started(self, step: str) -> None:
        """Release the allocations that need not be kept during the step."""
        self._forecast.started(step, self._site.env.now)
        self._balance()

    def quantum_step_begins(self, step: str) -> None:
        """Adjust the time at which nodes are requested, since the step has its QPU."""
        self._forecast.begins(step, step, self._site.env.now)
        self._balance()

    def quantum_step_ended(self, step: str) -> None:
        """Hold nodes for the tasks that follow the step."""
        self._forecast.ended(step, self._site.env.now, completed=True)
        self._balance()

    def close(self) -> None:
        """Withdraw requests, release allocations, and keep the forecast for later runs."""
        self._closed = True
        self._forecast.stop_counting()
        self._site.forecasts[self._forecast_key] = self._forecast
        for requests in self._requests.values():
            for request in requests:
                request.interrupt()
        for allocation in self._pool.free:
            self._site.cluster.release(allocation)

    def _give_back(self, allocation: Allocation) -> None:
        self._pool.remove(allocation)
        self._site.cluster.release(allocation)

    def _reach_limit(self, allocation: Allocation) -> None:
        if allocation in self._pool.busy:
            self._past_limit.add(allocation)
        elif allocation in self._pool.free and not self._closed:
            self._give_back(allocation)
            self._balance()

    def _balance(self) -> None:
        if self._closed:
            return
        now = self._site.env.now
        while self._wanted and self._pool.free:
            # the most recently used allocation, so that the others reach the idle time
            allocation = next(reversed(self._pool.free))
            granted, arrived = self._wanted.popleft()
            self._pool.assign(allocation, arrived)
            granted.succeed(allocation)
        due = self._pool.due(now)
        for allocation in self._pool.remove_idle(now, due):
            self._site.cluster.release(allocation)
        self._pool.adjust(
            self._requests,
            len(self._wanted),
            due,
            lambda _: self._site.env.process(self._request_allocation()),
            simpy.Process.interrupt,
        )
        self._set_timer(now)

    def _set_timer(self, now: float) -> None:
        change = self._pool.next_change(now)
        if change != self._timer_at:
            self._timer_at = change
            if change < math.inf:
                timer = self._site.env.timeout(change - now, change)
                timer.callbacks.append(self._on_timer)

    def _on_timer(self, timer: simpy.Event) -> None:
        # the timer may have been set to another time meanwhile
        if timer.value == self._timer_at:
            self._timer_at = math.inf
            self._balance()

    def _request_allocation(self) -> Process:
        """Request one allocation; after ``patience`` seconds, accept fewer nodes."""
        env, cluster, task = self._site.env, self._site.cluster, self._task
        patience = self._pool.settings.patience
        process = env.active_process
        began = env.now
        requests: list[Allocation] = []

        def request(nodes: int) -> simpy.Event:
            requests.append(
                cluster.request(
                    {task.partition: nodes},
                    self._estimate,
                    self._outcome.nodes,
                    {task.partition: task.nodes},
                )
            )
            return requests[-1].granted

        try:
            before, held = self._site.allocation_seconds(task.partition)
            yield env.timeout(before)
            granted = request(task.nodes)
            if task.least == task.nodes or math.isinf(patience):
                yield granted
            else:
                yield granted | env.timeout(patience)
                if not granted.triggered:
                    yield granted | request(task.least)
            yield env.timeout(held)
        except simpy.Interrupt:
            for one in requests:
                cluster.release(one)
            return
        first, *others = sorted(requests, key=lambda one: not one.started)
        for one in others:
            cluster.release(one)
        for pending in self._requests.values():
            if process in pending:
                pending.remove(process)
        self._forecast.granted(env.now - began)
        self._pool.add(first, env.now)
        limit = env.timeout(self._estimate)
        limit.callbacks.append(lambda _: self._reach_limit(first))
        self._balance()
