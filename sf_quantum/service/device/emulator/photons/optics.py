"""The check and the simulation of experiments in linear optics, with Perceval.

Only separate processes import Perceval, which takes a second.
"""

from __future__ import annotations

import base64
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import JobParameters, shots_of
from sf_quantum.samplers.defaults import SEEDS
from sf_quantum.service.device.emulator.device_errors import Noise
from sf_quantum.service.domain.photonic import PhotonicExperiment
from sf_quantum.text import described

if TYPE_CHECKING:
    from exqalibur.serialization.circuit_pb2 import Circuit as Message
    from exqalibur.serialization.circuit_pb2 import Component
    from perceval import Circuit, NoiseModel

CIRCUIT, ZIPPED = ":PCVL:ACircuit:", ":PCVL:zip:"
# Limits on a circuit: bytes when unpacked, components, and depth of circuits in circuits.
MOST_BYTES = 4 * 2**20
MOST_COMPONENTS = 10_000
MOST_DEPTH = 20
# largest deviation of the product of a matrix and its adjoint from the identity
UNITARY_ERROR = 1e-6
# the components of circuits, with their parameters; a "circuit" contains further components
COMPONENTS: Mapping[str, tuple[str, ...]] = {
    "beam_splitter": ("theta", "phi_tl", "phi_bl", "phi_tr", "phi_br"),
    "phase_shifter": ("phi", "max_error"),
    "permutation": (),
    "unitary": (),
    "barrier": (),
    "circuit": (),
}
# Maximum number of nested parentheses and negations. Each makes Perceval take 4 times as long
# to reject a condition: 8 s with 12.
MOST_NESTED = 6
# Maximum number of shots that are sampled in one call.
BATCH = 100_000


def check(experiment: PhotonicExperiment) -> None:
    """Reject an experiment that cannot be simulated.

    :raises InputError: if the experiment cannot be simulated; the message says why
    """
    _circuit(experiment)
    _condition(experiment)


def simulate(
    request: PhotonicExperiment, parameters: JobParameters, noise: Noise | None
) -> dict[str, JSON]:
    """Return the counts of the Fock states that threshold detectors read.

    :raises InputError: if the experiment cannot be simulated
    """
    import exqalibur
    import perceval
    from perceval.runtime import SimulatedComputer

    # With more threads, the same seed would not always give the same samples.
    exqalibur.Config.compute_max_thread_count = 1
    # errors change with each attempt
    seed = (parameters.get("seed") or 0) + (noise.seed if noise else 0)
    perceval.random_seed(seed % SEEDS)
    experiment = perceval.Experiment(_circuit(request))
    experiment.with_input(perceval.BasicState(request.input_state))
    # At least this many photons arrive in each shot. Threshold detectors may read fewer, so
    # shots are selected again below.
    experiment.min_detected_photons_filter(request.needed)
    computer = SimulatedComputer("CliffordClifford2017")
    computer.noise = _noise_model(noise)
    shots = shots_of(parameters)
    read = Counter[tuple[int, ...]]()
    for first in range(0, shots, BATCH):
        batch = min(BATCH, shots - first)
        states = computer.sample_count(experiment, max_samples=batch)["results"]
        for state, count in states.items():
            read[tuple(min(1, photons) for photons in state)] += int(count)
    fulfils, heralded = _condition(request), request.heralded
    counter = Counter[str]()
    for state, count in sorted(read.items()):
        if (
            sum(state) >= request.needed
            and all(state[mode] == photons for mode, photons in heralded.items())
            and fulfils(state)
        ):
            kept = (str(n) for mode, n in enumerate(state) if mode not in heralded)
            counter[f"|{','.join(kept)}>"] += count
    return {"counter": {**counter}}


def _noise_model(noise: Noise | None) -> NoiseModel:
    from perceval import NoiseModel

    if noise is None:
        return NoiseModel()
    calibration = noise.calibration
    # The age is rounded, so that for a while the same seed gives the same counts.
    present = replace(calibration, age=round(calibration.age, 2))
    rates = noise.errors.aged(present.age, present.excess)
    return NoiseModel(
        brightness=10.0 ** (-rates.get("source_loss_db", 0.0) / 10.0),
        transmittance=10.0 ** (-rates.get("loss_db", 0.0) / 10.0),
        indistinguishability=1.0 - rates.get("distinguishability", 0.0),
        g2=rates.get("g2", 0.0),
    )


def _condition(experiment: PhotonicExperiment) -> Callable[[tuple[int, ...]], bool]:
    """Read ``postselect`` as a function of the numbers of photons in the modes."""
    from perceval import BasicState, PostSelect

    text = experiment.postselect or ""
    if _nested(text) > MOST_NESTED:
        detail = f"more than {MOST_NESTED} parentheses or negations in one another"
        raise InputError(f"postselect: {detail}")
    for modes in re.findall(r"\[([^]]*)", text):
        for mode in re.findall(r"\d+", modes):
            if int(mode) >= experiment.modes:
                raise InputError(f"postselect: there is no mode {int(mode)}")
    try:
        condition = PostSelect(text)
    except RuntimeError as error:
        raise InputError(f"postselect: {described(error)}") from error
    return lambda state: bool(condition(BasicState([*state])))


def _nested(text: str) -> int:
    """Return how deeply the parentheses and negations of a condition are nested."""
    most = depth = negations = 0
    opened: list[int] = []
    for character in text.replace("!=", "").replace(" ", ""):
        if character == ")" and opened:
            depth -= opened.pop()
        negations += character == "!"
        most = max(most, depth + negations + (character == "("))
        if character == "(":
            opened.append(1 + negations)
            depth += opened[-1]
        if character != "!":
            negations = 0
    return most


def _circuit(experiment: PhotonicExperiment) -> Circuit:
    """Read the circuit."""
    import numpy
    from exqalibur.serialization.circuit_pb2 import Circuit as Message
    from perceval.serialization.deserialize import deserialize_circuit

    message = Message()
    try:
        message.ParseFromString(_bytes(experiment.circuit))
        if message.n_mode != experiment.modes:
            detail = (
                f"{message.n_mode} modes, but {experiment.modes} in the input state"
            )
            raise InputError(detail)
        # Perceval would evaluate expressions as Python
        for number, component in enumerate(_components(message)):
            if number >= MOST_COMPONENTS:
                raise InputError(f"more than {MOST_COMPONENTS:,} components")
            _check_component(component)
        circuit = deserialize_circuit(message)
        matrix = numpy.asarray(circuit.compute_unitary(), dtype=complex)
    except MemoryError:
        raise
    except Exception as error:  # three libraries raise errors here, some AssertionError
        raise InputError(f"circuit: {described(error)}") from error
    square = matrix @ matrix.conj().T
    if not numpy.allclose(square, numpy.eye(experiment.modes), atol=UNITARY_ERROR):
        raise InputError("circuit: is not unitary")
    return circuit


def _bytes(text: str) -> bytes:
    """Unpack a text in the format of Perceval's ``serialize()``."""
    if text.startswith(ZIPPED):
        unpacking = zlib.decompressobj()
        packed = base64.b64decode(text.removeprefix(ZIPPED), validate=True)
        text = unpacking.decompress(packed, MOST_BYTES).decode()
        if unpacking.unconsumed_tail:
            raise InputError(f"unpacked, it has more than {MOST_BYTES:,} bytes")
    if not text.startswith(CIRCUIT):
        raise InputError("not a circuit as Perceval's serialize() makes it")
    return base64.b64decode(text.removeprefix(CIRCUIT), validate=True)


def _components(circuit: Message, depth: int = 0) -> Iterator[Component]:
    if depth > MOST_DEPTH:
        raise InputError(f"circuits in one another, {MOST_DEPTH} at most")
    for component in circuit.components:
        yield component
        if component.WhichOneof("type") == "circuit":
            yield from _components(component.circuit, depth + 1)


def _check_component(component: Component) -> None:
    kind = component.WhichOneof("type")
    if kind not in COMPONENTS:
        raise InputError(f"has a component ({kind}) that is not one of linear optics")
    content = getattr(component, kind)
    for name in COMPONENTS[kind]:
        if not content.HasField(name):
            continue
        parameter = getattr(content, name)
        if parameter.WhichOneof("type") != "real_value":
            raise InputError(f"{kind}: {name} has no value")
        if not math.isfinite(parameter.real_value):
            raise InputError(f"{kind}: {name} is not finite")
        # Perceval would reject parameters with the same name and different values
        parameter.ClearField("name")
    if kind == "unitary":
        if content.mat.WhichOneof("data") != "numeric" or content.use_polarization:
            raise InputError("unitary: its matrix does not consist of numbers")
        for one in content.mat.numeric.data:
            if not math.isfinite(one.real_value + one.imaginary_value):
                raise InputError("unitary: its matrix is not finite")
