"""The errors of an emulated device: its calibrations, readings of them, and noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sf_quantum.files import JSON
from sf_quantum.service.device.technologies import Errors

if TYPE_CHECKING:
    from dimod import BinaryQuadraticModel
    from numpy import bool_
    from numpy.typing import NDArray

# factor on the errors of a faulty calibration
FAULT_FACTOR = 20.0
# readings per calibration
READINGS = 100
# relative standard deviation of a reading; an assumption
READING_ERROR = 0.05
# range of a qubit's bias relative to that of a coupler (h_range -4 to 4, j_range -1 to 1
# of D-Wave's Advantage)
FIELD_RANGE = 4.0
# labels from this on are not used as qubit numbers, which bounds the random draws
MAX_LABELS = 2**20


@dataclass(frozen=True)
class Calibration:
    """A calibration of a device at a point in time.

    :param age: from 0 (new) to 1 (about to be renewed)
    :param faulty: whether it has larger errors; not visible to users
    :param seed: of random draws that change with each calibration
    :param drifts: whether it gradually becomes faulty; not visible to users
    """

    id: str
    made: datetime
    age: float
    faulty: bool
    seed: int
    drifts: bool = False

    @property
    def summary(self) -> dict[str, JSON]:
        """Id and time, as JSON."""
        return {"id": self.id, "time": self.made.isoformat(timespec="seconds")}

    @property
    def excess(self) -> float:
        """Factor on the errors of a good calibration of the same age."""
        if self.faulty:
            return FAULT_FACTOR
        return 1.0 + self.age * (FAULT_FACTOR - 1.0) if self.drifts else 1.0


@dataclass(frozen=True)
class Reading:
    """A device's measurement of its own errors.

    :param number: of the reading within its calibration, from 0
    :param values: measured values by name
    :param expected: values of a good calibration of this age
    """

    calibration: Calibration
    number: int
    values: dict[str, float]
    expected: dict[str, float]

    @property
    def summary(self) -> dict[str, JSON]:
        """Id and time of the calibration, and the values, as JSON."""
        return {**self.calibration.summary, "values": {**self.values}}

    @property
    def deviations(self) -> dict[str, float]:
        """Deviations of the values from the expected ones, in standard deviations."""
        return {
            name: math.log(value / self.expected[name]) / READING_ERROR
            for name, value in self.values.items()
        }


@dataclass(frozen=True)
class Noise:
    """The noise of one job.

    :param errors: errors of a good, new calibration
    :param seed: of random draws that change with each job
    """

    errors: Errors
    calibration: Calibration
    seed: int

    def run_problem(
        self, content: Mapping[str, JSON], run: Callable[[JSON], dict[str, JSON]]
    ) -> dict[str, JSON]:
        """Run a problem with noise; energies are those of the problem without noise.

        :param content: a serialized BQM
        :param run: samples it and returns a serialized sample set
        """
        from dimod import BinaryQuadraticModel, SampleSet

        bqm = BinaryQuadraticModel.from_serializable(content)
        answer = run(self._programmed(bqm).to_serializable())
        # the methods of SampleSet are untyped in dimod
        samples: SampleSet = SampleSet.from_serializable(answer)  # type: ignore[no-untyped-call]
        bits = self._read(samples.record.sample > 0)
        states = bits if bqm.vartype.name == "BINARY" else 2 * bits.astype("int8") - 1
        read: SampleSet = SampleSet.from_samples_bqm(  # type: ignore[no-untyped-call]
            (states.astype("int8"), list(samples.variables)),
            bqm,
            num_occurrences=samples.record.num_occurrences,
            info=dict(samples.info),
        )
        serialized: dict[str, JSON] = read.to_serializable()  # type: ignore[no-untyped-call]
        return serialized

    def misread(self, counter: Mapping[str, int]) -> dict[str, JSON]:
        """Apply read-out errors to the counts of bit strings."""
        import numpy

        words = Counter(counter).elements()
        rows = numpy.array([[bit == "1" for bit in word] for word in words], dtype=bool)
        read = Counter(
            "".join("01"[int(bit)] for bit in row) for row in self._read(rows)
        )
        return dict(sorted(read.items()))

    def _programmed(self, bqm: BinaryQuadraticModel) -> BinaryQuadraticModel:
        """Return the Ising model that the device realizes for a problem.

        Integer labels are qubits of the chip, each with its own errors; other labels are
        numbered in order. The error of a coupler is the sum of contributions of its two
        qubits, so that those of neighbouring couplers are correlated.
        """
        import numpy
        from dimod import Vartype

        changed = bqm.change_vartype(Vartype.SPIN, inplace=False)
        if not self.errors.control:
            return changed
        labels = [*changed.variables]
        qubit = {label: number for number, label in enumerate(labels)}
        if all(type(label) is int and 0 <= label < MAX_LABELS for label in labels):
            qubit = {label: label for label in labels}
        generator = numpy.random.default_rng(self.calibration.seed)
        shape = (2, 3, max(qubit.values(), default=0) + 1)
        initial, drift = generator.standard_normal(shape)
        fields = [abs(bias) / FIELD_RANGE for bias in changed.linear.values()]
        couplings = [abs(bias) for bias in changed.quadratic.values()]
        largest = float(max(fields + couplings, default=0.0))
        sigma = self.errors.control * self.calibration.excess * largest
        error = sigma * (initial + self.calibration.age * drift)
        for label in labels:
            changed.add_linear(label, float(error[0, qubit[label]]))
        for pair in list(changed.quadratic):
            low, high = sorted(qubit[label] for label in pair)
            total = (error[1, low] + error[2, high]) / 2**0.5
            changed.add_quadratic(*pair, float(total))
        return changed

    def _read(self, rows: NDArray[bool_]) -> NDArray[bool_]:
        import numpy

        generator = numpy.random.default_rng(self.seed)
        errors = self.errors.aged(self.calibration.age, self.calibration.excess)
        false_one = errors.get("readout_false_one", 0.0)
        false_zero = errors.get("readout_false_zero", 0.0)
        flips = generator.random(rows.shape) < numpy.where(rows, false_zero, false_one)
        bits: NDArray[bool_] = rows ^ flips
        return bits
