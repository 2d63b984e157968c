"""The places of a QPU in Slurm's pools that Slurm does not free."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from sf_quantum.qpu.leasing.burst.folder import Folder
from sf_quantum.slurm.burst import Buffer

# A place counts as lost after this time; until then, another job may just be taking it.
LOST_SECONDS = 10.0


class LostPlaces:
    """Places of jobs that are gone, written for the plugin, which adds them to the pools."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        # How many are lost and since when, and how many are written, by QPU.
        self._lost: dict[str, tuple[int, float]] = {}
        self._counted = Counter[str]()

    def __bool__(self) -> bool:
        return bool(self._counted)

    def write(
        self, taken: Sequence[Buffer], used: Mapping[str, int], gone: set[int]
    ) -> None:
        """Write how many places there are.

        :param taken: places that Slurm lists
        :param used: number of places that Slurm counts, by QPU
        :param gone: jobs that are gone
        """
        lost = Counter(one.pool for one in taken if one.job in gone)
        lost += Counter(used) - Counter(one.pool for one in taken)
        # those that have been lost for a while: Slurm's list and count may differ shortly
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
