"""The errors of an imperfect device: biases that are off, bits that are misread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sf_quantum.files import JSON
from sf_quantum.service.device.calibration import Calibration
from sf_quantum.service.device.technologies import Errors

if TYPE_CHECKING:
    from dimod import BinaryQuadraticModel
    from numpy import bool_
    from numpy.random import Generator
    from numpy.typing import NDArray

# the range of a qubit's bias over that of a coupler (h_range and j_range of D-Wave's
# Advantage: -4 to 4 and -1 to 1)
FIELD_RANGE = 4.0
# larger labels are not taken for numbers of qubits
QUBITS = 2**20


@dataclass(frozen=True)
class Noise:
    """The errors of one job.

    :param errors: of a new calibration
    :param strength: factor on the errors; 0 is an ideal device
    :param seed: for what is drawn anew with each job
    """

    errors: Errors
    strength: float
    calibration: Calibration
    seed: int

    @property
    def none(self) -> bool:
        """Whether the device is ideal."""
        return self.strength == 0 or self.errors == Errors()

    def run_problem(
        self,
        content: Mapping[str, JSON],
        run: Callable[[JSON], dict[str, JSON]],
    ) -> dict[str, JSON]:
        """Run a problem with control errors; the energies are those without them.

        :param content: a serialized BQM
        :param run: samples a serialized BQM
        :returns: a sample set, serialized
        """
        from dimod import BinaryQuadraticModel, SampleSet

        bqm = BinaryQuadraticModel.from_serializable(content)
        answer = run(self._programmed(bqm).to_serializable())
        # dimod leaves this one untyped
        found: SampleSet = SampleSet.from_serializable(answer)  # type: ignore[no-untyped-call]
        rows = found.record.sample > 0
        bits = self._read(rows)
        states = bits if bqm.vartype.name == "BINARY" else 2 * bits.astype("int8") - 1
        read: SampleSet = SampleSet.from_samples_bqm(  # type: ignore[no-untyped-call]
            (states.astype("int8"), list(found.variables)),
            bqm,
            num_occurrences=found.record.num_occurrences,
            info=dict(found.info),
        )
        serialized: dict[str, JSON] = read.to_serializable()  # type: ignore[no-untyped-call]
        return serialized

    def misread(self, counter: Mapping[str, JSON]) -> dict[str, JSON]:
        """Apply read-out errors to bit strings, given with their counts."""
        import numpy

        words = [
            word
            for word, count in counter.items()
            if isinstance(count, int)
            for _ in range(count)
        ]
        rows = numpy.array([[bit == "1" for bit in word] for word in words], dtype=bool)
        read = Counter(
            "".join("01"[int(bit)] for bit in row) for row in self._read(rows)
        )
        return dict(sorted(read.items()))

    def _programmed(self, bqm: BinaryQuadraticModel) -> BinaryQuadraticModel:
        """Return the Ising model that the device realises for a problem.

        Labels that are whole numbers are qubits of the chip, each with its own errors;
        others are numbered in their order. The error of a coupler has a part of each of
        its two qubits, as those of neighbouring couplers do on the chip.
        """
        import numpy
        from dimod import Vartype

        changed = bqm.change_vartype(Vartype.SPIN, inplace=False)
        if not self.errors.control:
            return changed
        labels = [*changed.variables]
        qubit = {label: number for number, label in enumerate(labels)}
        if all(type(label) is int and 0 <= label < QUBITS for label in labels):
            qubit = {label: label for label in labels}
        draw = numpy.random.default_rng(self.calibration.seed)
        made, drifted = draw.standard_normal((2, 3, max(qubit.values(), default=0) + 1))
        error = self._sigma(changed) * (made + self.calibration.age * drifted)
        for label in labels:
            changed.add_linear(label, float(error[0, qubit[label]]))
        for pair in list(changed.quadratic):
            low, high = sorted(qubit[label] for label in pair)
            both = (error[1, low] + error[2, high]) / 2**0.5
            changed.add_quadratic(*pair, float(both))
        return changed

    def _sigma(self, bqm: BinaryQuadraticModel) -> float:
        """Return the size of the errors, on a device whose range the problem fills."""
        fields = (abs(bias) / FIELD_RANGE for bias in bqm.linear.values())
        couplings = (abs(bias) for bias in bqm.quadratic.values())
        largest = max([*fields, *couplings], default=0.0)
        size = self.errors.control * self.strength * self.calibration.excess
        return size * float(largest)

    def _read(self, rows: NDArray[bool_]) -> NDArray[bool_]:
        import numpy

        draw: Generator = numpy.random.default_rng(self.seed)
        factor = self.strength * self.calibration.factor
        chances = [
            min(0.5, chance * factor)
            for chance in (self.errors.false_one, self.errors.false_zero)
        ]
        wrong = draw.random(rows.shape) < numpy.where(rows, chances[1], chances[0])
        read: NDArray[bool_] = rows ^ wrong
        return read
