"""Journal entries about a job's wait for nodes that several jobs use in turn.

If nodes serve a single job, the journal entry of the job includes the request for nodes.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from sf_quantum import journal
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.journal import events


class NodesWait:
    """Records that a job has to wait for nodes, and that its nodes are granted.

    If the context is left while the job waits, the job has given up.
    """

    def __init__(self, job: str, deployment: str, service: SlurmService) -> None:
        self._job, self._deployment, self._service = job, deployment, service
        self._began = time.monotonic()
        self._waits = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        type_: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end("given-up")

    def begin(self) -> None:
        """Record that the job has to wait, unless it already waits."""
        if not self._waits:
            self._waits = True
            self._write("waiting")

    def granted(self) -> None:
        """Record that the nodes are granted, if the job had to wait."""
        self._end("granted")

    def _end(self, status: str) -> None:
        if self._waits:
            self._waits = False
            self._write(status)

    def _write(self, status: str) -> None:
        if (record := journal.current()) is not None:
            record.write(
                events.Nodes(
                    job=self._job,
                    deployment=self._deployment,
                    service=self._service.name or None,
                    status=status,
                    seconds=time.monotonic() - self._began,
                )
            )
