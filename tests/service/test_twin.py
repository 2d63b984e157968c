"""Twins: what they take from the device for which they stand, and what they accept."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sf_quantum.cli import main
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.protocol.calibrations import CalibrationData
from sf_quantum.protocol.descriptions import Description, Timing, Topology
from sf_quantum.protocol.tasks import JobParameters, Kind
from sf_quantum.samplers.problem import FieldError, document
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.device.emulator.photons.photonic import installation_problem
from sf_quantum.service.device.emulator.settings import DeviceSettings
from sf_quantum.service.device.emulator.technologies import TECHNOLOGIES, Errors
from sf_quantum.service.device.interface import Device
from sf_quantum.service.device.processes.limits import ComputeLimits
from sf_quantum.service.device.vendor.device import QpuDevice
from sf_quantum.service.http.tokens import Tokens, new_token, token_entry
from sf_quantum.service.twin import Original, TwinDevice, original
from sf_quantum.testing.devices import CIRCUIT
from sf_quantum.testing.qpus import PHOTONIC, sequence
from tests.support.scripted import scripted_server
from tests.support.service import example_bqm, running_service

# small enough for problems of more variables than qubits
KEYS: dict[str, JSON] = {
    "name": "cold",
    "qubits": 16,
    "out_of_service": [3, 7],
    "shots": 20,
    "time_scale": 0,
    # of a job of 20 shots of 13 variables, and not of more
    "compute": {"values": 260, "updates": 10_000_000},
}
GRAPH = Topology("square", (2, 2), 4, ((0, 1), (0, 2), (1, 3), (2, 3)))
TOLD = Description("annealer", 3, ("problem",), frozenset({4}), 50, topology=GRAPH)


def emulated(technology: str) -> EmulatedDevice:
    # of the technologies, only annealers number the qubits by their graph
    numbers: JSON = [30, 31] if technology == "annealer" else [3, 7]
    return EmulatedDevice.from_config(
        {**KEYS, "technology": technology, "out_of_service": numbers}
    )


@pytest.fixture(scope="module", params=TECHNOLOGIES)
def pairs(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[Device, TwinDevice, Device]]:
    """A device, its twin, and the same device behind a second service."""
    device = emulated(str(request.param))
    with running_service(device) as service:
        twin = TwinDevice.from_config({"of": f"{service.url}/v1", "time_scale": 0})
        front = QpuDevice.from_config({"qpu": "sfq", "config": {"url": service.url}})
        front.refresh()
        yield device, twin, front
        front.close()


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Kind, JSON, JobParameters]:
    """Jobs around all limits of the devices, some of them wrong."""
    size = draw(st.integers(1, 17))
    number = st.integers(-1, size)
    shots = draw(st.sampled_from([None, 1, 19, 20, 21]))
    sweeps = draw(st.sampled_from([None, 1, 1000, 10**5]))
    parameters = {"num_reads": shots, "num_sweeps": sweeps}
    kind: Kind = draw(st.sampled_from(["problem", "circuit"]))
    if kind == "circuit":
        qubit, gate = draw(number), draw(st.sampled_from(["h", "cx", "nonsense"]))
        text = f'include "stdgates.inc"; qubit[{size}] q; bit[{size}] c;'
        return kind, f"OPENQASM 3; {text} {gate} q[{qubit}]; c = measure q;", parameters
    couplings = draw(st.lists(st.tuples(number, number), max_size=5))
    biases = [draw(st.sampled_from([1.0, -0.5, float("nan")]))] * size
    labels: list[JSON] = [*range(size)]
    bqm = document(labels, biases, couplings, [1.0] * len(couplings), "SPIN")
    return kind, bqm, parameters


def accepts(device: Device, kind: Kind, content: JSON, given: JobParameters) -> bool:
    try:
        device.check(kind, content, given)
    except FieldError:
        return False
    return True


@settings(derandomize=True, deadline=None, max_examples=150)
@given(job=jobs())
def test_what_a_twin_accepts_the_device_accepts(
    pairs: tuple[Device, TwinDevice, Device], job: tuple[Kind, JSON, JobParameters]
) -> None:
    device, twin, front = pairs
    accepted = accepts(twin, *job)
    # it is emulated as well, and refuses nothing else
    assert accepts(device, *job) == accepted
    if accepted:
        assert accepts(front, *job)


def test_a_twin_accepts_what_fits(pairs: tuple[Device, TwinDevice, Device]) -> None:
    most = {"num_reads": 18, "num_sweeps": 1}
    if pairs[0].description.technology == "photonic":
        wide: JSON = {**PHOTONIC, "input_state": f"|{','.join('1' * 15)}>"}
        for one in pairs:
            computes = isinstance(one, QpuDevice) or installation_problem() is None
            assert accepts(one, "photonic", PHOTONIC, {"num_reads": 20}) == computes
            assert not accepts(one, "photonic", wide, {"num_reads": 20})
        return
    for device in pairs:
        bqm = document([*range(14)], [1.0] * 14, [], [], "BINARY")
        assert accepts(device, "problem", bqm, most)
        gates = device.description.technology == "superconducting"
        assert accepts(device, "circuit", CIRCUIT, most) == gates
    device, twin, front = pairs
    pulse = sequence(device.specs())
    for one in (device, twin, front):
        assert accepts(one, "sequence", pulse, {"num_reads": 20})
    for one in (device, twin):
        assert not accepts(one, "sequence", "{}", {"num_reads": 20})


def test_a_twin_has_what_its_original_tells(
    pairs: tuple[Device, TwinDevice, Device],
) -> None:
    device, twin, _ = pairs
    told, own = device.description, twin.description
    assert own == replace(told, calibration=own.calibration, specs=device.specs())
    assert twin.name == "cold-twin"
    assert twin.description.graph == device.description.graph
    assert twin.compute_limits == device.compute_limits
    assert twin.cost({"num_reads": 7}) == device.cost({"num_reads": 7})
    assert json.loads(twin.specs()) == json.loads(device.specs())
    assert own.calibration is not None
    assert told.calibration is not None
    assert own.calibration.id != told.calibration.id


def test_a_twin_has_the_lattice_of_its_original() -> None:
    keys: dict[str, JSON] = {"technology": "superconducting", "qubits": 5}
    with running_service(EmulatedDevice.from_config(keys)) as service:
        twin = TwinDevice.from_config({"of": service.url, "time_scale": 0})
    text = 'OPENQASM 3; include "stdgates.inc"; qubit[5] q; bit c; cz q[{}], q[2];'
    text = f"{text} c = measure q[2];"
    assert accepts(twin, "circuit", text.format(1), {"num_reads": 1})
    with pytest.raises(FieldError, match="these are not coupled"):
        twin.check("circuit", text.format(1).replace("2", "0"), {"num_reads": 1})


def test_errors_are_those_of_the_latest_calibration() -> None:
    values: dict[str, JSON] = {
        "readout_false_one": 0.125,
        "readout_false_zero": 0.75,  # no error
        "control_error": "x",
        "gate_error_one_qubit": 0.002,
        "gate_error_two_qubits": 0.02,
        "t1_seconds": 80e-6,
    }
    told = replace(
        TOLD,
        technology="superconducting",
        calibration=CalibrationData.read({"id": "c9", "values": values}),
    )
    twin = TwinDevice.of(Original("iqm", told), DeviceSettings(noise=2.0))
    usual = TECHNOLOGIES["superconducting"].errors
    assert twin.errors == Errors(
        false_one=0.25,
        false_zero=2 * usual.false_zero,
        one_qubit=0.004,
        two_qubits=0.04,
        t1=40e-6,
        t2=usual.t2 / 2,
    )
    assert [*twin.remarks()] == [
        "iqm does not tell its run times: they are as is usual for technology "
        "superconducting",
        "the calibration of iqm does not tell its readout_false_zero: it is 0.0137, "
        "as is usual for technology superconducting",
        "the calibration of iqm does not tell its t2_seconds: it is 9.55e-06, "
        "as is usual for technology superconducting",
    ]


def test_what_is_not_told_is_as_usual() -> None:
    told = Description("annealer", 0, ("problem", "sequence"))
    twin = TwinDevice.of(Original("q", told), DeviceSettings())
    assert twin.hardware.timing == TECHNOLOGIES["annealer"].timing
    assert (twin.description.graph, twin.description.qubits) == (None, 5000)
    assert [remark.partition(":")[0] for remark in twin.remarks()] == [
        "q does not tell its size",
        "q does not tell its run times",
        "q does not tell its graph",
        "the calibration of q does not tell its control_error",
    ]


def test_any_graph_and_limits_of_its_own() -> None:
    told = replace(TOLD, timing=Timing(1.0, 0.5, 0.25))
    limits = ComputeLimits(values=100, cpu_seconds=900)
    own = DeviceSettings(name="test", compute=ComputeLimits(values=7000))
    twin = TwinDevice.of(Original("lab", told, limits), own)
    assert twin.description.graph is GRAPH
    assert twin.name == "test"
    assert twin.cost({"num_reads": 2}).qpu_seconds == 2.5
    assert (twin.compute.values, twin.compute.cpu_seconds) == (100, 300)
    assert not accepts(twin, "problem", example_bqm(), {"num_reads": 51})
    assert accepts(twin, "problem", example_bqm(), {"num_reads": 33})
    four = document([*range(4)], [1.0] * 4, [], [], "BINARY")
    assert not accepts(twin, "problem", four, {"num_reads": 1})
    assert not accepts(twin, "sequence", "{}", {"num_reads": 1})


def test_a_technology_that_is_not_emulated() -> None:
    told = replace(TOLD, technology="trapped-ion")
    with pytest.raises(InputError, match="unknown technology 'trapped-ion'"):
        TwinDevice.of(Original("q", told), DeviceSettings())


def test_the_device_of_a_configuration(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "service.yml"
    device = EmulatedDevice(qubits=40, noise=0)
    with running_service(device) as service:
        path.write_text(
            f"device: {{type: qpu, qpu: sfq, name: far, config: {{url: '{service.url}'}}}}"
        )
        with caplog.at_level(logging.WARNING):
            twin = TwinDevice.from_config({"of": str(path)})
    assert twin.name == "far-twin"
    assert twin.description.graph == device.description.graph
    assert "does not tell its control_error" in caplog.text
    path.write_text(json.dumps({"device": {**KEYS, "technology": "neutral-atom"}}))
    told = original(str(path))
    assert told.name == "cold"
    assert told.description.qubits == 14
    assert told.limits == emulated("neutral-atom").compute


def test_a_device_with_tokens(tmp_path: Path) -> None:
    tokens, token = tmp_path / "tokens.yml", new_token()
    tokens.touch(0o600)
    tokens.write_text(json.dumps([token_entry("ada", token, admin=False)]))
    file = tmp_path / "token"
    file.write_text(token)
    with running_service(authenticate=Tokens(tokens)) as service:
        with pytest.raises(InputError, match="refuses"):
            original(service.url)
        assert original(service.url, file).name == "emulator"
        keys: dict[str, JSON] = {"of": service.url, "token_file": str(file)}
        assert TwinDevice.from_config(keys).name == "emulator-twin"


def test_no_such_original(tmp_path: Path) -> None:
    with pytest.raises(QpuError, match="does not answer"):
        original(f"unix:{tmp_path}/none")
    with pytest.raises(InputError, match=r"none\.yml: cannot be read"):
        original(str(tmp_path / "none.yml"))
    path = tmp_path / "twin.yml"
    path.write_text(f"device: {{type: twin, of: {path}}}")
    with pytest.raises(InputError, match="its device is a twin itself"):
        original(str(path))
    path.write_text("device: {type: qpu, qpu: sfq, config: {ulr: x}}")
    with pytest.raises(InputError, match=r"twin\.yml: device: unknown key 'ulr'"):
        original(str(path))
    with pytest.raises(InputError, match="token_file: is for the URL of a service"):
        original(str(path), tmp_path / "token")


def test_an_original_that_tells_nonsense() -> None:
    told: JSON = {"name": "q", "technology": "annealer", "bounds": {"values": "many"}}
    with (
        scripted_server([(200, told)]) as server,
        pytest.raises(QpuError, match="bounds: "),
    ):
        original(server.url)


@pytest.mark.parametrize("key", ["technology", "qubits", "shots", "topology"])
def test_what_a_twin_has_from_its_original_cannot_be_set(key: str) -> None:
    value: JSON = {"technology": "annealer", "topology": "zephyr"}.get(key, 5)
    with pytest.raises(InputError, match=f"{key}: a twin has that of its original"):
        TwinDevice.from_config({"of": "http://127.0.0.1:1", key: value})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--twin-of", "URL", "--qubits", "5"], "--qubits conflicts: a twin has that"),
        (["--twin-of", "URL", "--topology", "zephyr"], "--topology conflicts"),
        (["--token-file", "t"], "--token-file requires --twin-of URL"),
        (["--twin-of", "no.yml"], "--twin-of: no.yml: cannot be read"),
        (["--twin-of", "no.yml", "--noise", "-1"], "--twin-of: noise: expected 0 or"),
    ],
)
def test_the_options_of_a_twin(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert main(["serve", *options]) == 2
    assert capsys.readouterr().err.startswith(f"sfq serve: {words}")


def test_the_configuration_of_a_twin_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "real.yml"
    with running_service(emulated("annealer")) as service:
        path.write_text(
            f"device: {{type: qpu, qpu: sfq, config: {{url: '{service.url}'}}}}"
        )
        # of the same file, with another device
        twin = ["serve", "--config", str(path), "--twin-of", str(path)]
        assert main([*twin, "--time-scale", "0", "--check"]) == 0
        assert main([*twin, "--technology", "annealer", "--check"]) == 2
        path.write_text(f"device: {{type: twin, of: '{service.url}', noice: 2}}")
        capsys.readouterr()
        assert main(["check", str(path)]) == 2
        (line,) = capsys.readouterr().out.splitlines()
        assert "unknown key 'noice', did you mean 'noise'" in line
        path.write_text(f"device: {{type: twin, of: '{service.url}'}}")
        assert main(["check", str(path)]) == 0
        capsys.readouterr()
    # it is gone
    assert main(["check", str(path)]) == 2
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{path}: device: QPU 'original' at ")
    assert "does not answer" in line
