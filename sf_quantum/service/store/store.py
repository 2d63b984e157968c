"""The leases, jobs and results of a service, on disk."""

from __future__ import annotations

from pathlib import Path

from sf_quantum.service.domain.jobs import Purpose
from sf_quantum.service.store.file.clock import steady_clock
from sf_quantum.service.store.file.database import Database
from sf_quantum.service.store.jobs import StoredJobs
from sf_quantum.service.store.leases import StoredLeases
from sf_quantum.service.store.progress import Progress
from sf_quantum.service.store.schema import SCHEMA, UPGRADES, VERSION
from sf_quantum.service.store.slices import StoredSlices


class Store(Database):
    """Leases and jobs in one SQLite file.

    Methods that change the state return a future that is done once the change is on disk.

    :raises InputError: if this version cannot read the file
    """

    def __init__(self, path: Path) -> None:
        super().__init__(
            path,
            version=VERSION,
            schema=SCHEMA,
            upgrades=UPGRADES,
            functions={
                "purpose_run": lambda text: Purpose.parse(text).run if text else None,
                "purpose_step": lambda text: text and Purpose.parse(text).step,
            },
        )
        #: clock for durations and ages
        self.clock = self.change(steady_clock).result()
        self.leases = StoredLeases(self, self.clock)
        self.jobs = StoredJobs(self, self.clock)
        #: writes the progress of jobs
        self.progress = Progress(self, self.clock)
        self.slices = StoredSlices(self)
