"""Experiments with photons: Perceval in processes of its own, and its remote computer."""

from __future__ import annotations

import base64
import json
import math
import runpy
import threading
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import combinations, permutations
from pathlib import Path

import numpy
import pytest

from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.protocol.tasks import Outcome, Task
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.samplers.problem import FieldError
from sf_quantum.service.config import make_device
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.photons import photonic
from sf_quantum.service.device.emulator.settings import DeviceSettings
from sf_quantum.service.device.emulator.technologies import TECHNOLOGIES, Errors
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.testing.qpus import PHOTONIC
from tests.support.folders import EXAMPLES
from tests.support.service import RunningService, running_service
from tests.support.waiting import until

INSTALLED = photonic.installation_problem() is None
with_perceval = pytest.mark.skipif(
    not INSTALLED, reason="perceval-quandela is not installed"
)
DEVICE = EmulatedDevice(technology="photonic", time_scale=0, seed=7)


def counted(
    content: dict[str, JSON], shots: int, device: EmulatedDevice = DEVICE
) -> dict[str, int]:
    """Run an experiment, and return its counts."""
    assert device.check("photonic", content, {"num_reads": shots}).photons
    counter: dict[str, int] = json.loads(text(run(content, shots, device)))["counter"]
    return counter


def run(content: JSON, shots: int, device: EmulatedDevice = DEVICE) -> Outcome:
    task = Task("tag", "photonic", json.dumps(content), {"num_reads": shots})
    return device.run(task, threading.Event())


def text(outcome: Outcome) -> str:
    assert outcome.result is not None, outcome.failure
    return outcome.result.text


def beam_splitter(**more: JSON) -> dict[str, JSON]:
    """Two photons at a symmetric beam splitter."""
    from perceval import BS
    from perceval.serialization import serialize

    return {"circuit": serialize(BS()), "input_state": "|1,1>", **more}


def refusal(**changed: JSON) -> str:
    """Change an experiment; return the field and the reason of its refusal."""
    return refused_by(DEVICE, changed)


def refused_by(device: EmulatedDevice, changed: dict[str, JSON]) -> str:
    with pytest.raises(FieldError) as caught:
        device.check("photonic", {**PHOTONIC, **changed}, {"num_reads": 1})
    assert "\n" not in caught.value.detail
    assert len(caught.value.detail) < 400
    return f"{caught.value.field}: {caught.value.detail}"


# what is refused before the queue


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"input_state": "|1,2>"}, "photonic.input_state: "),
        ({"input_state": "|1,0"}, "photonic.input_state: "),
        ({"input_state": "|0,0>"}, "input_state: has no photon"),
        ({"input_state": f"|{','.join('1' * 25)}>"}, "25 modes; the device has 24"),
        ({"input_state": f"|{','.join('1' * 13)}>"}, "13 photons; at most 12"),
        (
            {"min_detected_photons": 2},
            "2 detected photons, with those of heralds, of 1",
        ),
        ({"heralds": {"7": 1}}, "heralds: there is no mode 7"),
        ({"heralds": {"0": 2}}, "photonic.heralds.0: "),
        ({"heralds": {"0": 1, "00": 0}}, "photonic.heralds.00"),
        ({"postselect": "[0]==1; import os"}, "photonic.postselect: "),
        ({"no_such_key": 1}, "photonic.no_such_key: "),
        ({"circuit": 5}, "photonic.circuit: "),
    ],
)
def test_a_wrong_experiment_is_refused(changed: dict[str, JSON], why: str) -> None:
    assert why in refusal(**changed)


def test_no_more_modes_than_the_device_has() -> None:
    device = EmulatedDevice(
        technology="photonic", qubits=3, out_of_service=frozenset({0, 1})
    )
    assert "2 modes; the device has 1" in refused_by(device, {})
    with pytest.raises(InputError, match="there is no qubit 24"):
        EmulatedDevice(technology="photonic", out_of_service=frozenset({24}))


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "pip install 'sf-quantum[photonic]'" in refusal()
    with pytest.raises(InputError, match="perceval-quandela is not installed"):
        run(PHOTONIC, 1)
    with pytest.raises(InputError, match="perceval-quandela is not installed"):
        make_device(DeviceSettings(technology="photonic"))


@with_perceval
@pytest.mark.parametrize(
    ("circuit", "why"),
    [
        ("", "not a circuit as Perceval's serialize() makes it"),
        (":PCVL:BasicState:|1,0>", "not a circuit as Perceval's serialize() makes it"),
        (":PCVL:ACircuit:EAIiCBACcgQKAgE", "photonic: circuit: "),
        (":PCVL:ACircuit:////", "photonic: circuit: "),
        (":PCVL:zip:AAAA", "photonic: circuit: "),
        (":PCVL:ACircuit:EAM=", "3 modes, but 2 in the input state"),
    ],
)
def test_a_malformed_circuit_is_refused(circuit: str, why: str) -> None:
    assert why in refusal(circuit=circuit)


@with_perceval
def test_a_text_that_unpacks_to_too_much_is_refused() -> None:
    packed = base64.b64encode(zlib.compress(b"A" * 5 * 2**20)).decode()
    assert "more than 4,194,304 bytes" in refusal(circuit=f":PCVL:zip:{packed}")


@with_perceval
def test_expressions_are_not_evaluated(tmp_path: Path) -> None:
    from exqalibur.serialization import circuit_pb2

    file = tmp_path / "written"
    code = f"__import__('pathlib').Path({str(file)!r}).touch()"
    phase, matrix = circuit_pb2.Circuit(n_mode=2), circuit_pb2.Circuit(n_mode=2)
    phase.components.add(n_mode=1).phase_shifter.phi.expression = code
    unitary = matrix.components.add(n_mode=2).unitary
    unitary.mat.rows = unitary.mat.cols = 1
    unitary.mat.symbolic.data.add().expression = code
    inner = circuit_pb2.Circuit(n_mode=2)
    inner.components.add(n_mode=2).circuit.CopyFrom(phase)
    assert "phase_shifter: phi has no value" in refusal(circuit=written(phase))
    assert "phase_shifter: phi has no value" in refusal(circuit=written(inner))
    assert "does not consist of numbers" in refusal(circuit=written(matrix))
    assert not file.exists()


def written(message: object) -> str:
    """Write a message as Perceval writes a circuit."""
    content: bytes = getattr(message, "SerializeToString")()  # noqa: B009
    return f":PCVL:ACircuit:{base64.b64encode(content).decode()}"


@with_perceval
def test_components_that_are_none_of_linear_optics_are_refused() -> None:
    from exqalibur.serialization import circuit_pb2

    def refused(component: object) -> str:
        circuit = circuit_pb2.Circuit(n_mode=2)
        circuit.components.append(component)
        return refusal(circuit=written(circuit))

    made = circuit_pb2.Component
    loss, phase, empty, matrix = made(n_mode=1), made(n_mode=1), made(), made(n_mode=1)
    loss.loss_channel.loss.real_value = 0.5
    phase.phase_shifter.phi.real_value = math.nan
    matrix.unitary.mat.rows = matrix.unitary.mat.cols = 1
    matrix.unitary.mat.numeric.data.add().real_value = 2.0
    assert "component (loss_channel) that is not one" in refused(loss)
    assert "phase_shifter: phi is not finite" in refused(phase)
    assert "component (None)" in refused(empty)
    assert "unitary" in refused(matrix)
    phase.phase_shifter.phi.real_value, phase.starting_mode = 0.1, 5
    assert "photonic: circuit: " in refused(phase)
    deep = circuit_pb2.Circuit(n_mode=2)
    for _ in range(25):
        outer = circuit_pb2.Circuit(n_mode=2)
        outer.components.add(n_mode=2).circuit.CopyFrom(deep)
        deep = outer
    assert "in one another" in refusal(circuit=written(deep))
    many = circuit_pb2.Circuit(n_mode=2)
    phase.starting_mode = 0
    many.components.extend([phase] * 10_001)
    assert "more than 10,000 components" in refusal(circuit=written(many))


@with_perceval
@pytest.mark.parametrize(
    ("condition", "why"),
    [
        ("[0]==", "postselect: Couldn't parse"),
        ("[0,2]==1", "postselect: there is no mode 2"),
        ("(" * 50 + "[0]==1" + ")" * 50, "more than 6 parentheses or negations in"),
        ("!" * 200, "more than 6 parentheses or negations in"),
        ("! (" * 4, "more than 6 parentheses or negations in"),
        ("([0]==1 & !" * 4 + "!", "more than 6 parentheses or negations in"),
    ],
)
def test_a_condition_that_cannot_be_read_is_refused(condition: str, why: str) -> None:
    assert why in refusal(postselect=condition)


# what is computed


@with_perceval
def test_photons_that_are_alike_leave_a_beam_splitter_together() -> None:
    # threshold detectors then see one of them
    assert counted(beam_splitter(), 2000) == {}
    counts = counted(beam_splitter(min_detected_photons=1), 2000)
    assert {*counts} == {"|0,1>", "|1,0>"}
    assert sum(counts.values()) == 2000
    assert abs(counts["|1,0>"] - 1000) < 5 * 2000**0.5 / 2


@with_perceval
@pytest.mark.parametrize("distinguishability", [0.094, 0.5, 1.0])
def test_a_dip_is_as_deep_as_photons_are_alike(
    distinguishability: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = Errors(source_loss=3.0, loss=4.0, distinguishability=distinguishability)
    hardware = replace(TECHNOLOGIES["photonic"], errors=errors)
    monkeypatch.setitem(TECHNOLOGIES, "photonic", hardware)
    device = DEVICE.model_copy(update={"noise": 1.0, "calibration_seconds": 1e9})
    shots, expected = 20_000, distinguishability / 2
    coincidences = counted(beam_splitter(), shots, device)["|1,1>"]
    deviation = (shots * expected * (1 - expected)) ** 0.5
    assert abs(coincidences - shots * expected) < 5 * deviation


@with_perceval
def test_bosons_are_sampled_by_permanents() -> None:
    from perceval import Matrix, Unitary
    from perceval.serialization import serialize

    modes, photons, shots = 6, 3, 20_000
    generator = numpy.random.default_rng(3)
    real, imaginary = generator.standard_normal((2, modes, modes))
    unitary, _ = numpy.linalg.qr(real + 1j * imaginary)
    content: dict[str, JSON] = {
        "circuit": serialize(Unitary(Matrix(unitary))),
        "input_state": "|1,1,1,0,0,0>",
    }
    counts = counted(content, shots)
    total = sum(counts.values())
    # of the outcomes without two photons in a mode, which are all that the detectors tell
    chances = {
        "|"
        + ",".join(str(int(mode in out)) for mode in range(modes))
        + ">": abs(
            sum(
                numpy.prod([unitary[mode, n] for n, mode in enumerate(order)])
                for order in permutations(out)
            )
        )
        ** 2
        for out in combinations(range(modes), photons)
    }
    single = sum(chances.values())
    assert abs(total - shots * single) < 5 * (shots * single * (1 - single)) ** 0.5
    assert {*counts} <= {*chances}
    chi_squared = sum(
        (counts.get(state, 0) - total * chance / single) ** 2
        / (total * chance / single)
        for state, chance in chances.items()
    )
    # of 19 degrees of freedom; more in one of 100,000 seeds, and this one is fixed
    assert chi_squared < 57.7


@with_perceval
@pytest.mark.parametrize("gate", ["postprocessed cnot", "heralded cnot"])
def test_dual_rail_qubits_are_flipped_by_a_cnot(gate: str) -> None:
    from perceval import BasicState, catalog

    from sf_quantum.qpu.sdks import perceval as sdk

    for control, target in ((0, 0), (0, 1), (1, 0), (1, 1)):
        built = catalog[gate].build_experiment()
        rails = [[1, 0], [0, 1]]
        built.with_input(BasicState([*rails[control], *rails[target]]))
        built.min_detected_photons_filter(2)
        counts = counted(sdk.experiment(built), 2000)
        expected = BasicState([*rails[control], *rails[target ^ control]])
        if gate == "heralded cnot":  # other results than those of qubits are left to it
            counts = {
                state: count
                for state, count in counts.items()
                if BasicState(state)[0:2].n == 1 == BasicState(state)[2:4].n
            }
        assert {*counts} == {str(expected)}
        # the success probabilities are 1/9 and 2/27
        assert sum(counts.values()) > 80


@with_perceval
def test_a_seed_repeats_the_counts() -> None:
    content = beam_splitter(min_detected_photons=1)
    device = DEVICE.model_copy(update={"noise": 1.0, "calibration_seconds": 1e9})
    first = counted(content, 500, device)
    assert all(counted(content, 500, device) == first for _ in range(4))


# how long it takes


def test_time_grows_as_photons_are_lost() -> None:
    device = EmulatedDevice(technology="photonic", noise=1.0)
    pulse = 12.5e-9

    def shot(photons: int, detected: int | None = None) -> float:
        state = f"|{','.join('1' * photons)}>"
        content: dict[str, JSON] = {"circuit": "", "input_state": state}
        content["min_detected_photons"] = detected
        size = photonic.size(photonic.experiment(content))
        seconds = device.cost({"num_reads": 10**6}, size).qpu_seconds
        return (seconds - device.hardware.timing.setup_seconds) / 10**6

    assert shot(1) == pytest.approx(pulse / 0.06)
    assert shot(2) == pytest.approx(2 * pulse / 0.06**2)
    assert shot(6) == pytest.approx(6 * pulse / 0.06**6)
    assert shot(2, 0) == pytest.approx(2 * pulse)
    assert shot(2, 1) == pytest.approx(2 * pulse / (1 - 0.94**2))
    device = EmulatedDevice(technology="photonic", noise=0.0)
    assert shot(6) == pytest.approx(6 * pulse)


@with_perceval
def test_rare_coincidences_do_not_hold_the_qpu() -> None:
    from perceval import Circuit
    from perceval.serialization import serialize

    state = f"|{','.join('1' * 12)}>"
    many: dict[str, JSON] = {"circuit": serialize(Circuit(12)), "input_state": state}
    device = EmulatedDevice(technology="photonic", noise=1.0)
    why = "photonic.min_detected_photons: 12 of 12 photons arrive together once in"
    assert why in refused_by(device, many)
    few = {**PHOTONIC, **many, "min_detected_photons": 4}
    for one, content in (
        (device, few),
        (device.model_copy(update={"time_scale": 0.0}), many),
    ):
        assert one.check("photonic", {**PHOTONIC, **content}, {"num_reads": 1}).photons


def test_a_calibration_tells_the_losses() -> None:
    device = EmulatedDevice(technology="photonic", noise=1.0, seed=1)
    values = device.calibrations.reading.values
    assert {*values} == {"source_loss_db", "loss_db", "distinguishability", "g2"}
    assert values["source_loss_db"] == pytest.approx(8.66, rel=0.3)
    worn = device.errors.aged(1.0)
    assert worn["loss_db"] == pytest.approx(1.1 * device.errors.loss)
    assert worn["distinguishability"] == pytest.approx(0.188)
    assert device.errors.aged(1.0, 1000.0)["g2"] == 0.5


# over HTTP, by Perceval


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with running_service(DEVICE) as running:
        yield running


@pytest.fixture
def qpu(service: RunningService) -> Iterator[SfqQpu]:
    lease = service.acquire()
    yield SfqQpu("q", service.url, lease=lease)
    service.ask("DELETE", f"/v1/leases/{lease}")


@with_perceval
def test_a_remote_computer_of_perceval_runs_on_the_qpu(qpu: SfqQpu) -> None:
    from perceval import BS, BasicState, Experiment, NoiseModel
    from perceval.runtime import ExecutionFactory

    computer = qpu.photonic_computer()
    assert computer.specs.constraints["max_mode_count"] == 24
    assert computer.performance["Transmittance (%)"] == pytest.approx(100)
    told = Experiment(BS())
    told.with_input(BasicState([1, 1]))
    told.min_detected_photons_filter(1)
    factory = ExecutionFactory(computer, told, max_shots_per_call=500)
    # the results of the first leave the QPU's own noise in the computer
    for _ in range(2):
        execution = factory.sample_count
        execution.execute_async(max_samples=300)
        until(partial(getattr, execution, "is_complete"), "the execution is complete")
        counts = execution.get_results()["results"]
        assert {*counts} == {BasicState([1, 0]), BasicState([0, 1])}
        assert sum(counts.values()) == 300
    for setting, value in (
        ("noise", NoiseModel(transmittance=0.5)),
        ("parameters", {"HOM": 0.9}),
    ):
        other = qpu.photonic_computer()
        setattr(other, setting, value)
        refused = ExecutionFactory(other, told, max_shots_per_call=5).sample_count
        with pytest.raises(InputError, match=setting):
            refused.execute_async(max_samples=5)
    too_many = Experiment(25)
    too_many.with_input(BasicState([1] + 24 * [0]))
    too_many.min_detected_photons_filter(1)
    refused = ExecutionFactory(computer, too_many, max_shots_per_call=5).sample_count
    with pytest.raises(RuntimeError, match="24"):
        refused.execute_async(max_samples=5)


@with_perceval
def test_a_job_that_is_refused_says_why(qpu: SfqQpu) -> None:
    from perceval import Experiment

    from sf_quantum.qpu.sdks import perceval as sdk

    with pytest.raises(InputError, match="expected a Fock state"):
        sdk.experiment(Experiment(2))
    content = {**PHOTONIC, "input_state": f"|{','.join('1' * 25)}>"}
    task = Task("tag-1", "photonic", json.dumps(content), {"num_reads": 1})
    with pytest.raises(InputError, match="the device has 24"):
        qpu.run_job(task)


@with_perceval
def test_a_qpu_without_photons_is_named() -> None:
    from sf_quantum.qpu.sdks.perceval import computer

    with running_service() as other, pytest.raises(InputError, match="no photons, but"):
        computer(SfqQpu("q", other.url, lease=other.acquire()))


@pytest.mark.skipif(INSTALLED, reason="perceval-quandela is installed")
def test_without_perceval_one_line_says_what_to_install() -> None:
    with pytest.raises(InputError, match="sf-quantum\\[photonic\\]"):
        SfqQpu("q", "http://127.0.0.1:1", lease="t").photonic_computer()


def test_a_job_is_refused_over_http(service: RunningService) -> None:
    lease = service.acquire()
    body: dict[str, JSON] = {
        "photonic": {**PHOTONIC, "input_state": "|0,0>"},
        "idempotency_key": "a",
    }
    answer = service.ask("POST", "/v1/jobs", body, lease=lease)
    service.ask("DELETE", f"/v1/leases/{lease}")
    assert answer.status == 422
    assert "has no photon" in json.dumps(answer.json())


def test_its_limits_are_those_of_computations() -> None:
    device = DEVICE.model_copy(update={"compute": ComputeLimits(values=10)})
    if INSTALLED:
        with pytest.raises(FieldError, match="at most 10 per job"):
            device.check("photonic", PHOTONIC, {"num_reads": 6})


@with_perceval
def test_the_example_prints_the_truth_table(
    service: RunningService,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from sf_quantum.qpu.environment import job_environment

    lease = service.acquire()
    for name, value in job_environment([(SfqQpu("q", service.url), lease)]).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["cnot.py", "--shots", "500"])
    path = EXAMPLES / "photonic/cnot.py"
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(path), run_name="__main__")
    service.ask("DELETE", f"/v1/leases/{lease}")
    lines = capsys.readouterr().out.splitlines()
    table = ("00 -> 00", "01 -> 01", "10 -> 11", "11 -> 10")
    assert lines == [f"{line}: 100.0%" for line in table]
