"""Which targets are quantum, and how their QPUs are, asked within a bounded time."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from streamflow.core.deployment import Target
from streamflow.deployment.connector import connector_classes

from sf_quantum.candidates.decision import number
from sf_quantum.connectors.quantum import QuantumConnector, deployed
from sf_quantum.errors import QuantumError
from sf_quantum.files import JSON
from sf_quantum.qpu import QpuStatus
from sf_quantum.qpu.selection import Selection

#: blocks; raises what :meth:`sf_quantum.qpu.Qpu.status` does
Source: TypeAlias = Callable[[], QpuStatus]
#: what a QPU says, or why it says nothing, in words that follow its name
Answer: TypeAlias = QpuStatus | str


def name(target: Target) -> str:
    """A target as the journal and the sentences call it: deployment/service."""
    parts = (target.deployment.name, target.service)
    return "/".join(part for part in parts if part)


def source(target: Target, folder: Path) -> Source | None:
    """How to ask the QPU of a target; the rule of what a quantum target is.

    A deployment is quantum if its connector is one of those that lease a QPU, a service
    if it says ``qpu: [names]``, as those of ``sfq.slurm`` do. The names are entries of the
    deployment's ``qrmiConfig``, or else QPUs of the environment. One with ``gres: qpu:N``
    alone names no QPU that could be asked, and counts as classical.

    :param folder: where relative paths of its configuration start
    :returns: ``None`` for a classical target
    """
    deployment = target.deployment
    kind = connector_classes.get(deployment.type)
    config: Mapping[str, JSON] = deployment.config
    if kind is not None and issubclass(kind, QuantumConnector):
        return partial(_of_connector, kind, deployment.name, config, folder)
    names = _qpus(config, target.service)
    return partial(_of_service, names, config, folder) if names else None


class Asker:
    """Asks QPUs, each in a thread of its own; one that hangs is not asked again before.

    :param cooldown: seconds for which one that did not answer in time is not asked, so
        that it costs one decision the time and not each; its late answer ends them
    """

    def __init__(self, cooldown: float) -> None:
        self._cooldown = cooldown
        self._asked: dict[str, asyncio.Future[Answer]] = {}
        self._silent: dict[str, float] = {}

    async def ask(
        self, sources: Mapping[str, Source], seconds: float
    ) -> dict[str, Answer]:
        """Ask all at once.

        :param sources: by the names of their targets
        :param seconds: how long to wait for the answers
        """
        answers: dict[str, Answer] = {
            n: words for n in sources if (words := self._rests(n))
        }
        futures = {n: self._future(n, sources[n]) for n in sources if n not in answers}
        if futures:
            await asyncio.wait(futures.values(), timeout=seconds)
        for name, future in futures.items():
            if future.done():
                answers[name] = future.result()
            else:
                answers[name] = f"does not answer within {seconds:g} s"
                self._silent[name] = time.monotonic() + self._cooldown
        return {name: answers[name] for name in sources}

    def _rests(self, name: str) -> str:
        """Why a QPU is not asked now, or nothing."""
        left = self._silent.get(name, 0.0) - time.monotonic()
        future = self._asked.get(name)
        if left <= 0 or (future is not None and _has_answered(future)):
            return ""
        return f"did not answer in time and is asked again in {number(left)} s"

    def _future(self, name: str, source: Source) -> asyncio.Future[Answer]:
        future = self._asked.get(name)
        if future is None or future.done():
            future = asyncio.get_running_loop().create_future()
            self._asked[name] = future
            # a daemon, since one that hangs must not keep the driver from ending
            threading.Thread(target=_answer, args=(source, future), daemon=True).start()
        return future


def _has_answered(future: asyncio.Future[Answer]) -> bool:
    return future.done() and isinstance(future.result(), QpuStatus)


def _answer(source: Source, future: asyncio.Future[Answer]) -> None:
    answer: Answer
    try:
        answer = source()
    except QuantumError as error:
        answer = f"cannot be asked: {error}"
    except Exception as error:  # noqa: BLE001 - of a vendor's package, who knows which
        answer = f"cannot be asked: {type(error).__name__}: {error}"
    with suppress(RuntimeError):  # the event loop is closed: nobody waits any more
        future.get_loop().call_soon_threadsafe(_settle, future, answer)


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)


def _of_connector(
    kind: type[QuantumConnector], name: str, config: Mapping[str, JSON], folder: Path
) -> QpuStatus:
    connector = deployed(name)
    client = connector.client() if connector is not None else None
    if client is not None:
        return client.status()
    return kind.undeployed_status(name, config, folder)


def _of_service(
    names: list[str], config: Mapping[str, JSON], folder: Path
) -> QpuStatus:
    """A job of the service gets all its QPUs together, so the worst of each counts."""
    file = config.get("qrmiConfig")
    path = str(folder / Path(str(file)).expanduser()) if file else None
    told = [qpu.status() for qpu in Selection(names, qrmi_config=path).qpus(os.environ)]
    offline = [status for status in told if not status.online]
    if offline:
        return offline[0]
    costs = [s.cost_per_second for s in told if s.cost_per_second is not None]
    times = [s.maintenance_seconds for s in told if s.maintenance_seconds is not None]
    return replace(
        max(told, key=_busy),
        # 0 is one that does not tell
        qubits=min((s.qubits for s in told if s.qubits), default=0),
        maintenance_seconds=min(times, default=None),
        cost_per_second=sum(costs) if costs else None,
    )


def _busy(status: QpuStatus) -> tuple[bool, float, int]:
    full = status.leases >= status.vqpus
    return full, status.eta_seconds or 0.0, status.queue_length


def _qpus(config: Mapping[str, JSON], service: str | None) -> list[str]:
    services = config.get("services")
    told = services.get(service) if isinstance(services, dict) and service else None
    names = told.get("qpu") if isinstance(told, dict) else None
    return [str(name) for name in names] if isinstance(names, list) else []
