"""A job's wait for nodes that several jobs use in turn, in the run's journal.

For nodes of a single job, the journal has the request together with the job.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from sf_quantum import journal
from sf_quantum.connectors.slurm.services import SlurmService
from sf_quantum.journal import events


class NodesWait:
    """Records that a job has to wait, and that its nodes are granted.

    Leaving the context means that the job has given up.
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
        """The job has to wait, or already waits."""
        if not self._waits:
            self._waits = True
            self._write("waiting")

    def granted(self) -> None:
        """The nodes are granted."""
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
