"""The slices of a job: how many shots each has, and which part of the job it runs.

If a job has several circuits or BQMs (a batch), each slice runs some of them with all their
shots. A slice of any other job runs part of the job's shots.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import JobParameters, shots_of
from sf_quantum.samplers.defaults import SEEDS
from sf_quantum.service.device.interface import Cost, Device
from sf_quantum.service.domain.jobs import Job, Kind, Size

# Largest fraction of a slice's time that its set-up may take; otherwise the job is not
# sliced, since slices would cost more time than they save.
MOST_SETUP = 0.2


class Slices:
    """The slices of one attempt, from the job's first slice that has not finished.

    :param slice_seconds: longest time that a slice should take; ``None``: the job is not
        sliced
    :param is_fixed: whether the first slice may be on the device, and so stays unchanged
    :ivar number: index of the current slice; slices of previous attempts are included
    :ivar shots: shots of the current slice; for a batch, in total over its items
    :ivar all_shots: shots of the job; for a batch, in total over its items
    :ivar shots_left: shots of the slices that are not on disk, including the current slice
    :ivar batch: the circuits or BQMs, if there are several
    """

    def __init__(
        self, device: Device, job: Job, slice_seconds: float | None, *, is_fixed: bool
    ) -> None:
        self._device = device
        self._job = job
        self._slice_seconds = slice_seconds
        self._is_fixed = is_fixed or job.device_job is not None
        self._size: Size | None = None
        self.batch: Batch | None = None
        self.number = job.slices
        self.all_shots = job.shots
        self.shots_left = job.shots - job.shots_done
        self.shots = self._first_shots()

    def set_size(self, size: Size) -> None:
        """Cut the job into slices again, now that the size of its payload is known."""
        self._size = size
        self.shots = self._first_shots()

    def set_batch(self, batch: Batch, done: int) -> None:
        """Cut the job into slices again, now by circuits or BQMs.

        :param done: number of circuits or BQMs whose results are on disk
        """
        self.batch = batch
        self.all_shots = batch.size * self._job.shots
        self.shots_left = self.all_shots - done * self._job.shots
        self.shots = self._first_shots()

    def next(self) -> None:
        """Continue with the next slice; the current slice is on disk."""
        self.shots_left -= self.shots
        self.number += 1
        self.shots = self._next_shots()

    @property
    def parameters(self) -> JobParameters:
        """The parameters in which the current slice differs from the job."""
        shots = self.shots if self.batch is None else self._job.shots
        return {"num_reads": shots, "seed": _seed(self._job, self.number)}

    @property
    def shots_on_disk(self) -> int:
        """The number of shots that is stored for the current slice.

        The numbers of all slices add up to the job's shots. For a batch, the number is thus
        the shots per item times the slice's fraction of the batch.
        """
        done = self.all_shots - self.shots_left
        before, after = (
            self._job.shots * shots // self.all_shots
            for shots in (done, done + self.shots)
        )
        return after - before

    def payload(self, whole: str) -> str:
        """Return the payload of the current slice."""
        if self.batch is None:
            return whole
        done = (self.all_shots - self.shots_left) // self._job.shots
        if self.one_by_one:
            return json.dumps(self.batch.each[done], sort_keys=True)
        return self.batch.part(done, self.shots // self._job.shots)

    @property
    def is_short(self) -> bool:
        """Whether the job fits in one slice, so pre-empting jobs can wait for its end."""
        longest = self._slice_seconds
        if longest is None or (self._job.kind != "circuit" and self.batch is None):
            return False
        # not the cost by the parameters alone: they do not contain the size of a batch
        cost = self._device.cost(self._job.parameters).qpu_seconds
        total_cost = Cost(max(cost, self._job.model_seconds))
        elapsed = self._device.elapsed_seconds(total_cost)
        return elapsed <= longest and not self.compute_long

    @property
    def compute_long(self) -> bool:
        """Whether the emulation of the device takes longer than a slice."""
        longest = self._slice_seconds
        return longest is not None and self._job.compute_seconds > longest

    @property
    def are_several(self) -> bool:
        """Whether the device gets the job in more than one part."""
        return self.number > 0 or self.shots_left > self.shots or self.one_by_one

    @property
    def one_by_one(self) -> bool:
        """Whether the device gets the BQMs of a list one at a time."""
        takes_batch = self._device.takes_lists or self._job.kind != "problem"
        return self.batch is not None and not takes_batch

    def _first_shots(self) -> int:
        if self._is_fixed:
            # unchanged even if the expected time of a shot has changed
            return self._job.slice_shots or self.shots_left
        return self._next_shots()

    def _next_shots(self) -> int:
        """Return the shots of the next slice; the remaining slices have equal lengths."""
        job = self._job
        # the cost of circuits and photonic experiments also depends on their content
        total = job.model_seconds if job.kind in ("circuit", "photonic") else 0.0
        parts, shots_per_part = job.shots, 1
        if self.batch is not None:
            parts, shots_per_part = self.batch.size, job.shots
        if self.batch is not None and job.kind == "problem":
            max_parts = self._most_problems(parts)
        else:
            # the computing time is included only if it depends on the number of parts; that
            # of a sequence does not depend on its shots
            depends_on_parts = self._size is not None or self.batch is not None
            computed = job.compute_seconds if depends_on_parts else 0.0
            max_parts = slice_parts(
                self._device,
                job.parameters,
                self._slice_seconds,
                Cost(total, compute_seconds=computed),
                parts,
                self._size,
            )
        parts_left = self.shots_left // shots_per_part
        return shots_per_part * math.ceil(
            parts_left / math.ceil(parts_left / max_parts)
        )

    def _most_problems(self, problems: int) -> int:
        """Return the maximum number of BQMs in a slice; each BQM has its own set-up."""
        if self.one_by_one:
            return 1
        job = self._job
        cost = Cost(job.model_seconds, compute_seconds=job.compute_seconds)
        total = self._device.elapsed_seconds(cost)
        if self._slice_seconds is None or total <= self._slice_seconds:
            return problems
        return max(1, int(problems * self._slice_seconds / total))


@dataclass(frozen=True)
class Batch:
    """Several circuits or BQMs, which are distributed over slices.

    :param each: the circuits or BQMs; if there is a program, the values of its parameters
        for each circuit
    :param program: circuit with parameters; ``None`` if each circuit has its own program
    :param what: kind of the items, ``circuits`` or ``problems``
    """

    each: Sequence[JSON]
    program: JSON = None
    what: str = "circuits"

    @classmethod
    def of(cls, kind: Kind, payload: str) -> Self | None:
        """Read a payload; ``None`` if it is one circuit, BQM, sequence or experiment."""
        if kind == "problem" and payload.startswith("["):
            return cls(json.loads(payload), what="problems")
        return cls.read(payload) if kind == "circuit" else None

    @classmethod
    def read(cls, payload: str) -> Self | None:
        """Read a payload of circuits; ``None`` if there is only one circuit."""
        content = json.loads(payload)
        program = None
        if isinstance(content, dict):
            program, content = content.get("program"), content.get("values")
        if not isinstance(content, list) or len(content) < 2:
            return None
        return cls(content, program)

    @property
    def size(self) -> int:
        return len(self.each)

    def part(self, first: int, number: int) -> str:
        """Return the payload of some of the circuits or BQMs."""
        items: JSON = [*self.each[first : first + number]]
        if self.program is not None:
            items = {"program": self.program, "values": items}
        return json.dumps(items, sort_keys=True)


def slice_parts(
    device: Device,
    parameters: JobParameters,
    slice_seconds: float | None,
    cost: Cost | None = None,
    parts: int | None = None,
    size: Size | None = None,
) -> int:
    """Return the maximum number of parts in a slice; all parts if the job is not sliced.

    :param cost: cost of the whole job, if it is higher than parameters and size imply
    :param parts: number of parts of the job, which take equally long; by default, its shots
    :param size: size of the payload, if the computing time depends on the number of shots
    """
    shots = shots_of(parameters)
    parts = parts or shots
    if slice_seconds is None:
        return parts

    def seconds(number: int) -> float:
        part = device.cost({**parameters, "num_reads": number}, size)
        return device.elapsed_seconds(part)

    estimated = device.elapsed_seconds(cost or Cost(0.0))
    setup, total = seconds(1), max(estimated, seconds(shots))
    if total <= slice_seconds or setup > MOST_SETUP * slice_seconds:
        return parts
    return max(1, int((slice_seconds - setup) / (total - setup) * (parts - 1)))


def _seed(job: Job, part: int) -> int | None:
    """Return a slice's own seed; with the job's seed, all slices would have equal samples."""
    seed = job.parameters.get("seed")
    if seed is None or part == 0:
        return seed
    return random.Random(f"{seed}/{part}").randrange(SEEDS)
