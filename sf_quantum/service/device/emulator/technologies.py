"""The technologies of emulated QPUs: their run times and errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from sf_quantum.protocol.descriptions import Timing
from sf_quantum.protocol.run_times import TIMINGS
from sf_quantum.protocol.tasks import JobParameters, shots_of
from sf_quantum.samplers.defaults import SWEEPS

HOUR = 3600.0


@dataclass(frozen=True)
class Errors:
    """The errors of a newly calibrated device.

    :param control: standard deviation of the error of each bias of an annealer, relative
        to the range of its couplers
    :param false_one: probability that a 0 is read as 1
    :param false_zero: probability that a 1 is read as 0
    :param one_qubit: parameter of the depolarising error of one-qubit gates
    :param two_qubits: parameter of the depolarising error of two-qubit gates
    :param t1: relaxation time of qubits in seconds; 0 for no relaxation
    :param t2: dephasing time of qubits in seconds, at most twice ``t1``; 0 for no
        dephasing
    :param source_loss: loss of photons in their source, in dB
    :param loss: loss of photons after their source, detectors included, in dB
    :param distinguishability: probability that a photon does not interfere with others
    :param g2: second-order correlation of the source, which sometimes emits two photons
    """

    control: float = 0.0
    false_one: float = 0.0
    false_zero: float = 0.0
    one_qubit: float = 0.0
    two_qubits: float = 0.0
    t1: float = 0.0
    t2: float = 0.0
    source_loss: float = 0.0
    loss: float = 0.0
    distinguishability: float = 0.0
    g2: float = 0.0

    def times(self, factor: float) -> Errors:
        """Return the errors multiplied by a factor, and the times divided by it."""
        return Errors(
            factor * self.control,
            factor * self.false_one,
            factor * self.false_zero,
            factor * self.one_qubit,
            factor * self.two_qubits,
            self.t1 / factor if factor else 0.0,
            self.t2 / factor if factor else 0.0,
            factor * self.source_loss,
            factor * self.loss,
            min(1.0, factor * self.distinguishability),
            min(MOST_G2, factor * self.g2),
        )

    def aged(self, age: float, excess: float = 1.0) -> dict[str, float]:
        """Return the errors that are not 0, by name of the reading.

        At the end of a calibration's lifetime, drift has added an independent control error
        of the same size, increased losses by a tenth, doubled the other errors, and halved
        the times.

        :param age: age of the calibration, from 0 to 1
        :param excess: factor on the errors of a good calibration of that age
        """
        factor = (1.0 + age) * excess
        grown = {
            "control_error": self.control * math.hypot(1.0, age) * excess,
            # At 0.5, a bit carries no information.
            "readout_false_one": min(0.5, self.false_one * factor),
            "readout_false_zero": min(0.5, self.false_zero * factor),
            # At 1, nothing is left of the state.
            "gate_error_one_qubit": min(1.0, self.one_qubit * factor),
            "gate_error_two_qubits": min(1.0, self.two_qubits * factor),
            "t1_seconds": self.t1 / factor,
            "t2_seconds": self.t2 / factor,
            "source_loss_db": self.source_loss * (1.0 + DRIFT_LOSS * (factor - 1.0)),
            "loss_db": self.loss * (1.0 + DRIFT_LOSS * (factor - 1.0)),
            "distinguishability": min(1.0, self.distinguishability * factor),
            "g2": min(MOST_G2, self.g2 * factor),
        }
        return {name: value for name, value in grown.items() if value > 0}


@dataclass(frozen=True)
class Technology:
    """A technology of QPUs.

    :param calibration_seconds: lifetime of a calibration
    :param sweep_seconds: annealing time equivalent to a Metropolis sweep; 0 if the time of
        a shot is constant
    :param pulse_seconds: time between two photons of a source
    """

    timing: Timing
    errors: Errors
    calibration_seconds: float
    sweep_seconds: float = 0.0
    pulse_seconds: float = 0.0

    def job_seconds(self, parameters: JobParameters, circuits: int = 1) -> float:
        """Return the run time of a job on the hardware; each circuit runs all shots."""
        shots = circuits * shots_of(parameters)
        extra = (parameters.get("num_sweeps") or SWEEPS) - SWEEPS
        seconds = self.timing.job_seconds(shots) + shots * extra * self.sweep_seconds
        # Solver parameters of SAPI can lengthen the set-up and each shot.
        setup, shot = (parameters.get(name) or 0 for name in ("setup_ns", "shot_ns"))
        return seconds + 1e-9 * (setup + shots * shot)

    def photon_seconds(
        self, errors: Errors, shots: int, *, photons: int, detected: int
    ) -> float:
        """Return the run time of an experiment with photons, on a new calibration.

        The source sends the photons of an input one at a time. An input is a shot if at
        least ``detected`` photons are not lost.
        """
        passes = 10.0 ** (-(errors.source_loss + errors.loss) / 10.0)
        chance = math.fsum(
            math.comb(photons, n) * passes**n * (1.0 - passes) ** (photons - n)
            for n in range(detected, photons + 1)
        )
        inputs = shots / max(chance, LEAST_CHANCE)
        return self.timing.setup_seconds + inputs * photons * self.pulse_seconds


# Largest g2 of Perceval's model of a source, which then always emits two photons.
MOST_G2 = 0.5
# Share of the losses that depends on the alignment; an assumption.
DRIFT_LOSS = 0.1
# Minimum probability of a shot: a less likely shot is not observed in a lifetime.
LEAST_CHANCE = 1e-18
ANNEALING_SECONDS = 20e-6
# durations of the one-qubit and two-qubit gates of IQM's Apollo (see below)
ONE_QUBIT_SECONDS, TWO_QUBITS_SECONDS = 42e-9, 130e-9
TECHNOLOGIES: Mapping[str, Technology] = {
    # Integrated control errors: where h and J are 1, "the QPU might actually solve" 1.01
    # (https://docs.dwavesys.com/docs/latest/c_qpu_ice.html). Drift is "measured and corrected
    # once an hour" (.../c_qpu_error_correction.html).
    "annealer": Technology(
        TIMINGS["annealer"],
        Errors(control=0.01),
        calibration_seconds=HOUR,
        sweep_seconds=ANNEALING_SECONDS / SWEEPS,
    ),
    # Read-out errors: medians of the 127 qubits of ibm_sherbrooke (props_sherbrooke.json in
    # qiskit-ibm-runtime), all calibrated on the same day. Gate errors, T1 and T2: medians of the
    # 20 qubits and 30 couplings of IQM's Apollo (IQMFakeApollo in iqm-client 36: prx and cz).
    "superconducting": Technology(
        TIMINGS["superconducting"],
        Errors(
            false_one=0.0205,
            false_zero=0.0137,
            one_qubit=0.00116,
            two_qubits=0.0138,
            t1=48.9e-6,
            t2=9.55e-6,
        ),
        calibration_seconds=24 * HOUR,
    ),
    # Read-out errors: legacy defaults of Pulser (pulser-core, noise_model.py). The daily
    # calibration of the laser is an assumption.
    "neutral-atom": Technology(
        TIMINGS["neutral-atom"],
        Errors(false_one=0.01, false_zero=0.05),
        calibration_seconds=24 * HOUR,
    ),
    # The source: first-lens brightness of 13.6 %, indistinguishability of 90.6 % and
    # purity (1 - g2) of 95.4 %, averages of fifteen quantum dots (Ollivier et al.,
    # arXiv:1910.08863). Of all photons, 6 % are counted; the loss that the brightness does not
    # explain occurs after the source. The daily calibration is an assumption. The timing is
    # for shots of one photon; see photon_seconds.
    "photonic": Technology(
        TIMINGS["photonic"],
        Errors(
            source_loss=-10.0 * math.log10(0.136),
            loss=-10.0 * math.log10(0.06 / 0.136),
            distinguishability=0.094,
            g2=0.046,
        ),
        calibration_seconds=24 * HOUR,
        pulse_seconds=12.5e-9,
    ),
}
