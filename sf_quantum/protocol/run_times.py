"""Run times of emulated QPUs, which the driver needs before their service has started."""

from __future__ import annotations

from collections.abc import Mapping

from sf_quantum.protocol.descriptions import Timing

#: run times by technology
TIMINGS: Mapping[str, Timing] = {
    # D-Wave: access time = programming + overhead + reads * (anneal + readout + delay),
    # https://docs.dwavesys.com/docs/latest/timing_qa_cycle_time.html; the figures are
    # from the sample set in Ocean's "Samplesets and Solutions": programming
    # 15,760 us and access overhead 2,259 us; anneal 20 us and delay 20.54 us; readout
    # 45.32 us.
    "annealer": Timing(18.02e-3, 40.54e-6, 45.32e-6),
    # Viviani et al. (2025), section 3: "each quantum task will last ~ 10 s"; Rocco et al.
    # (2025): "in the order of seconds". A shot: 250 us, the default repetition delay of IBM's
    # Eagle processors (their conf_*.json in qiskit-ibm-runtime), which includes the read-out of
    # about 1 us.
    "superconducting": Timing(9.75, 250e-6, 0.0),
    # Rocco et al. (2025): "minutes to complete a job (also considering register preparation)",
    # emulated there with two minutes; Viviani et al. (2025): jobs "include the calibration
    # time for an arbitrary register geometry"; Wennersteen et al. (2025): "the shot rate is on
    # the order of 1 Hz", imaging included. 1700 shots are the half hour of Viviani et al.
    "neutral-atom": Timing(120.0, 1.0, 0.0),
    # The set-up, mostly heating phase shifters, is an assumption. A shot is one detected
    # photon. Perceval assumes that 6 % of the photons arrive unless a QPU reports its figure
    # (DEFAULT_TRANSMITTANCE in its remote_processor.py). Pulses come at 80 MHz, the usual rate
    # of the lasers that excite single-photon sources.
    "photonic": Timing(0.1, 12.5e-9 / 0.06, 0.0),
}
