"""Lost places in Slurm's pools; a pool has a place for each job that may request a lease."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from sf_quantum.qpu.leasing.burst.folder import Folder
from sf_quantum.slurm.burst import Buffer

# A place counts as lost after this time; before, another job may just be taking it.
LOST_SECONDS = 10.0


class LostPlaces:
    """Places of jobs that no longer exist; Slurm's plug-in adds their number to the pools."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        # By QPU: number of places that look lost, with the time since which the number
        # is unchanged; and number of lost places that was written.
        self._lost: dict[str, tuple[int, float]] = {}
        self._counted = Counter[str]()

    def __bool__(self) -> bool:
        return bool(self._counted)

    def write(
        self, taken: Sequence[Buffer], used: Mapping[str, int], gone: set[int]
    ) -> None:
        """Write the number of lost places of each QPU.

        :param taken: occupied places that Slurm lists
        :param used: number of occupied places that Slurm counts, by QPU
        :param gone: jobs that no longer exist
        """
        lost = Counter(one.pool for one in taken if one.job in gone)
        lost += Counter(used) - Counter(one.pool for one in taken)
        # only places that look lost for a while: Slurm's list and count may briefly differ
        now = time.monotonic()
        counted = Counter[str]()
        for pool, count in lost.items():
            before, since = self._lost.get(pool, (0, now))
            since = since if before == count else now
            self._lost[pool] = count, since
            kept = min(count, self._counted[pool])
            counted[pool] = count if now - since >= LOST_SECONDS else kept
        self._lost = {pool: self._lost[pool] for pool in lost}
        self._counted = +counted
        text = "".join(
            f"{pool} {count}\n" for pool, count in sorted(self._counted.items())
        )
        if text:
            self._folder.replace("places", text)
        else:
            (self._folder.path / "places").unlink(missing_ok=True)
