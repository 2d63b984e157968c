"""The noise of a job, from the errors of an emulated device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sf_quantum.files import JSON
from sf_quantum.service.device.emulator.technologies import Errors
from sf_quantum.service.device.readings import Calibration

if TYPE_CHECKING:
    from dimod import BinaryQuadraticModel
    from numpy import bool_
    from numpy.typing import NDArray

# range of a qubit's bias relative to the range of a coupler's (D-Wave's Advantage has
# h_range -4 to 4 and j_range -1 to 1)
FIELD_RANGE = 4.0
# drift of a qubit's flux for a control error of 1, in flux quanta, until a new calibration
# corrects the drift (D-Wave corrects it once an hour); an assumption
FLUX_DRIFT = 3e-3
# Larger labels are not used as qubit numbers, to limit the number of random draws.
MAX_LABELS = 2**20


@dataclass(frozen=True)
class Noise:
    """The noise of one job.

    :param errors: errors of a good, new calibration
    :param seed: seed of random draws that change with each job
    """

    errors: Errors
    calibration: Calibration
    seed: int

    def run_problem(
        self,
        content: Mapping[str, JSON],
        run: Callable[[JSON], dict[str, JSON]],
        *,
        scaled: bool = True,
    ) -> dict[str, JSON]:
        """Run a problem with noise; the energies are of the problem without noise.

        :param content: a serialized BQM
        :param run: function that samples a BQM and returns a serialized sample set
        :param scaled: whether the biases are scaled to the ranges of the device; errors
            are relative to these ranges
        """
        from dimod import BinaryQuadraticModel, SampleSet

        from sf_quantum.samplers.energies import exact_energies
        from sf_quantum.samplers.problem import serialized

        bqm = BinaryQuadraticModel.from_serializable(content)
        answer = run(self._programmed(bqm, scaled=scaled).to_serializable())
        # the methods of SampleSet are untyped in dimod
        samples: SampleSet = SampleSet.from_serializable(answer)  # type: ignore[no-untyped-call]
        bits = self._read(samples.record.sample > 0)
        states = bits if bqm.vartype.name == "BINARY" else 2 * bits.astype("int8") - 1
        labelled = states.astype("int8"), [*samples.variables]
        read: SampleSet = SampleSet.from_samples(  # type: ignore[no-untyped-call]
            labelled,
            bqm.vartype,
            energy=exact_energies(bqm, *labelled),
            num_occurrences=samples.record.num_occurrences,
            info=dict(samples.info),
        )
        return serialized(read)

    def drift(self, qubits: int) -> list[float]:
        """Draw the flux drift of each of the first qubits of the chip."""
        import numpy

        # The drift has its own random stream, separate from that of the programming
        # errors.
        generator = numpy.random.default_rng([self.calibration.seed, 1])
        sigma = FLUX_DRIFT * self.errors.control * self.calibration.excess
        drawn: list[float] = (sigma * generator.standard_normal(qubits)).tolist()
        return drawn

    def misread(self, counter: Mapping[str, int]) -> dict[str, JSON]:
        """Apply read-out errors to the counts of bit strings."""
        import numpy

        words = Counter(counter).elements()
        rows = numpy.array([[bit == "1" for bit in word] for word in words], dtype=bool)
        read = Counter(
            "".join("01"[int(bit)] for bit in row) for row in self._read(rows)
        )
        return dict(sorted(read.items()))

    def _programmed(
        self, bqm: BinaryQuadraticModel, *, scaled: bool
    ) -> BinaryQuadraticModel:
        """Return the Ising model that the device realizes for a problem.

        Integer labels are qubits of the chip, each with its own errors; other labels are
        numbered in order. The error of a coupler is the sum of contributions from its two
        qubits, so the errors of neighbouring couplers are correlated.
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
        largest = float(max(fields + couplings, default=0.0)) if scaled else 1.0
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
