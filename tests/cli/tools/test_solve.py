"""``sfq solve`` from file to file, here and on a QPU."""

from __future__ import annotations

import json
import logging
import math
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import numpy
import pytest
from dimod import BinaryQuadraticModel, SampleSet
from hypothesis import given
from hypothesis import strategies as st

from sf_quantum import backoff, samplers
from sf_quantum.backoff import Backoff
from sf_quantum.cli import main
from sf_quantum.files import JSON
from sf_quantum.qpu.sfq import service_client, service_job, service_jobs
from sf_quantum.qpu.sfq.service_qpu import SfqQpu
from sf_quantum.samplers.exact import ENUMERATED
from sf_quantum.samplers.neal import NealSampler
from sf_quantum.samplers.problem import serialized
from sf_quantum.samplers.qaoa import QaoaSampler
from sf_quantum.service.device.emulator.device import EmulatedDevice
from tests.support.service import RunningService, example_bqm, running_service

Solve = Callable[..., tuple[int, str]]
TIMING = {"queued_seconds", "qpu_seconds", "seconds", "around_seconds"}


@pytest.fixture
def bqm() -> dict[str, JSON]:
    return example_bqm()


@pytest.fixture
def service() -> Iterator[RunningService]:
    with running_service() as running:
        yield running


@pytest.fixture(autouse=True)
def classical(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "REQUEST", Backoff(0.01, 3.0))
    monkeypatch.setattr(service_client, "RETRY_SECONDS", 0.03)
    # however long a small job takes on a busy machine, no line says so
    monkeypatch.setattr(service_jobs, "_SUBMISSIONS", "/v1/jobs?wait=30")
    for key in ("QRMI_JOB_QPU_RESOURCES", "QRMI_JOB_QPU_TYPES"):
        monkeypatch.delenv(key, raising=False)


@pytest.fixture
def problem(tmp_path: Path, bqm: dict[str, JSON]) -> Path:
    path = tmp_path / "problem.json"
    path.write_text(json.dumps({"type": "problem", "bqm": bqm, "candidates": []}))
    return path


@pytest.fixture
def solve(problem: Path, capsys: pytest.CaptureFixture[str]) -> Solve:
    """Runs it in the problem's folder: the exit code, and the line on stderr."""

    def run(*options: str) -> tuple[int, str]:
        output = problem.parent / "samples.json"
        files = ["--problem", str(problem), "--output", str(output)]
        code = main(["solve", *files, *options])
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("\n") == (1 if code else 0)
        assert output.exists() == (code == 0)
        assert {path.name for path in problem.parent.iterdir()} <= {
            "problem.json",
            "samples.json",
        }
        return code, printed.err

    return run


def _samples(problem: Path) -> SampleSet:
    content = json.loads((problem.parent / "samples.json").read_text())
    return SampleSet.from_serializable(content)  # type: ignore[no-untyped-call,no-any-return]


def _environment(monkeypatch: pytest.MonkeyPatch, url: str, lease: str) -> None:
    monkeypatch.setenv("QRMI_JOB_QPU_RESOURCES", "q")
    monkeypatch.setenv("QRMI_JOB_QPU_TYPES", "sfq")
    monkeypatch.setenv("q_SFQ_URL", url)
    monkeypatch.setenv("q_QRMI_JOB_ACQUISITION_TOKEN", lease)


def test_a_rounded_whole_number_is_refused_with_file_and_key(
    solve: Solve, problem: Path, bqm: dict[str, JSON]
) -> None:
    bqm["quadratic_biases"] = [2**53 + 1, 1.5]
    problem.write_text(json.dumps({"bqm": bqm}))
    code, line = solve()
    assert code == 2
    key, number = "bqm.quadratic_biases[0]", "9007199254740993"
    assert line.startswith(f"sfq solve: {problem}: {key}: {number} is rounded by")


def test_without_a_qpu_it_is_neal(solve: Solve, problem: Path) -> None:
    assert solve("--reads", "20", "--seed", "4", "--sweeps", "50") == (0, "")
    samples = _samples(problem)
    assert len(samples) == 20
    assert samples.first.sample == {"a": 1, "b": 0, "c": 1}
    info = dict(samples.info)
    assert info.pop("timing").keys() == TIMING
    # a is heavier than b, which excludes it, and then nothing keeps c out
    assert info == {
        "sampler": "neal",
        "seed": 4,
        "reads": 20,
        "presolve": {"fixed": 3, "drawn": 0, "parts": [], "asked": 0},
        "energy": -1.75,
        "feasible_share": 1.0,
        "optimum": -1.75,
        "optimal_share": 1.0,
        "qpu": None,
        "technology": None,
        "calibration": None,
    }


def test_on_the_qpu_of_the_environment_the_samples_are_the_same(
    solve: Solve,
    problem: Path,
    service: RunningService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert solve("--reads", "20", "--seed", "4") == (0, "")
    here = _samples(problem)
    lease = service.acquire()
    _environment(monkeypatch, service.url, lease)
    assert solve("--reads", "20", "--seed", "4") == (0, "")
    there = _samples(problem)
    assert (here.record == there.record).all()
    assert here.variables == there.variables
    assert there.info.keys() - here.info.keys() == {
        *("job", "attempt", "num_sweeps", "device")
    }
    assert there.info["timing"].keys() == TIMING
    assert there.info["timing"]["qpu_seconds"] > 0
    # decided before any QPU, but this one was leased, and is asked
    assert there.info["presolve"]["parts"] == [3]
    assert (there.info["qpu"], there.info["technology"]) == ("q", "annealer")
    assert there.info["reads"] == 20
    # a sampler asked for by name runs here, QPU or not
    assert solve("--sampler", "neal", "--reads", "20") == (0, "")
    assert len(service.queue.store.jobs.latest(lease=lease)) == 1


def test_circuits_of_qaoa_run_on_a_qpu_that_takes_circuits(
    solve: Solve, problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("qiskit")
    problem.write_text(json.dumps({"bqm": ring(1)}))
    device = EmulatedDevice(
        technology="superconducting", qubits=5, time_scale=0.0, noise=1.0
    )
    quick = ["--sampler", "qaoa", "--set", "depth=1", "--set", "optimiser=none"]
    with running_service(device) as service:
        lease = service.acquire()
        _environment(monkeypatch, service.url, lease)
        assert solve(*quick, "--reads", "30", "--set", "mitigation=readout") == (0, "")
        (job,) = service.queue.store.jobs.latest(lease=lease)
        assert (job.kind, job.parameters["num_reads"]) == ("circuit", 30)
        samples = _samples(problem)
        assert samples.record.num_occurrences.sum() == 30
        assert samples.info["mitigation"] == ["readout"]
        assert samples.info["timing"]["qpu_seconds"] > 0
        assert samples.info["technology"] == "superconducting"
        assert samples.info["calibration"]["id"] == device.calibrations.present.id
        (problem.parent / "samples.json").unlink()
        code, line = solve(*quick, "--set", "mitigation=readuot")
        assert code == 2
        known = "(known: readout, zne)"
        assert f"unknown pass 'readuot', did you mean 'readout'? {known}" in line
        code, line = solve("--set", "mitigation=readout")
        assert code == 2
        assert "mitigation: not a parameter of QpuSampler" in line
        assert len(service.queue.store.jobs.latest(lease=lease)) == 1


def test_circuits_of_qaoa_are_emulated_where_the_qpu_takes_none(
    solve: Solve,
    problem: Path,
    service: RunningService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("qiskit")
    problem.write_text(json.dumps({"bqm": ring(1)}))
    lease = service.acquire()
    _environment(monkeypatch, service.url, lease)
    quick = ["--sampler", "qaoa", "--set", "depth=1", "--set", "optimiser=none"]
    assert solve(*quick, "--reads", "30") == (0, "")
    assert _samples(problem).info["mitigation"] == []
    (problem.parent / "samples.json").unlink()
    code, line = solve(*quick, "--set", "mitigation=readout")
    assert code == 2
    assert "mitigation readout: passes are for a QPU's circuits, and aer is no" in line
    assert not service.queue.store.jobs.latest(lease=lease)


def test_half_an_environment_is_not_a_classical_run(
    solve: Solve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QRMI_JOB_QPU_RESOURCES", "q")
    code, line = solve()
    assert code == 2
    assert "QRMI_JOB_QPU_TYPES" in line


def test_a_qpu_that_does_not_answer_is_worth_retrying(
    solve: Solve, monkeypatch: pytest.MonkeyPatch
) -> None:
    _environment(monkeypatch, "unix:/nowhere/socket", "lease")
    code, line = solve()
    assert code == 75
    assert "QPU 'q' at unix:/nowhere/socket does not answer" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--seed", "99999999999"], "seed: 99999999999 is out of range"),
        (["--set", "num_sweeps"], "--set num_sweeps: expected NAME=VALUE"),
        (["--set", "dept=3"], "dept: not a parameter of NealSampler"),
    ],
)
def test_wrong_options(solve: Solve, options: list[str], words: str) -> None:
    code, line = solve(*options)
    assert code == 2
    assert words in line


@pytest.mark.parametrize("option", ["--reads=0", "--sweeps=0", "--seed=-1"])
def test_wrong_numbers(
    solve: Solve, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        solve(option)
    name, value = option.split("=")
    said = f"argument {name}: '{value}': expected a whole number of at least"
    assert said in capsys.readouterr().err


def test_an_unknown_sampler(solve: Solve, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        solve("--sampler", "nael")
    assert "did you mean 'neal'? (known: exact, neal" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "problem.json, line 1: not JSON"),
        ("[]", "expected a problem file, a JSON object"),
        ("{}", "key 'bqm' is missing"),
        ('{"bqm": 3}', "bqm: expected a BQM"),
    ],
)
def test_wrong_problem(solve: Solve, problem: Path, content: str, words: str) -> None:
    problem.write_text(content)
    code, line = solve()
    assert code == 2
    assert str(problem) in line
    assert words in line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"linear_biases": [1.0, math.nan, 1.0]}, "bqm.linear_biases[1]: "),
        ({"linear_biases": [1.0, math.inf, 1.0]}, "bqm.linear_biases[1]: "),
        ({"variable_labels": []}, "the problem has no variable"),
    ],
)
def test_wrong_bqm(
    solve: Solve,
    problem: Path,
    bqm: dict[str, JSON],
    change: dict[str, JSON],
    words: str,
) -> None:
    problem.write_text(json.dumps({"bqm": {**bqm, **change}}))
    code, line = solve()
    assert code == 2
    assert f"{problem}: " in line
    assert words in line


def ring(count: int) -> dict[str, JSON]:
    """Candidates in rings of four, which only a sampler can choose from."""
    whole = BinaryQuadraticModel("BINARY")
    whole.add_linear_from((i, -1.0) for i in range(4 * count))
    for first in range(0, 4 * count, 4):
        whole.add_quadratic_from(
            (first + i, first + (i + 1) % 4, 2.0) for i in range(4)
        )
    return cast("dict[str, JSON]", whole.to_serializable())


def test_parts_are_one_job_and_a_second_try_finds_it(
    solve: Solve,
    problem: Path,
    service: RunningService,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem.write_text(json.dumps({"bqm": ring(3)}))
    lease = service.acquire()
    _environment(monkeypatch, service.url, lease)
    for _ in range(2):
        # without a seed the QPU draws it, and the job is the same again
        assert solve("--reads", "50") == (0, "")
        (job,) = service.queue.store.jobs.latest(lease=lease)
    info = _samples(problem).info
    assert (info["job"], info["presolve"]["parts"]) == (job.id, [4, 4, 4])
    assert info["timing"]["qpu_seconds"] > 0
    assert info["optimal_share"] > 0.9


def test_parts_that_the_qpu_takes_apart_only_are_a_job_each(
    solve: Solve, problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem.write_text(json.dumps({"bqm": ring(2)}))
    with running_service(EmulatedDevice(time_scale=0, qubits=4)) as service:
        lease = service.acquire()
        _environment(monkeypatch, service.url, lease)
        assert solve("--reads", "50") == (0, "")
        jobs = [job.id for job in service.queue.store.jobs.latest(lease=lease)]
    info = _samples(problem).info
    assert [part["job"] for part in info["parts"]] == jobs
    assert info["presolve"]["asked"] == len(jobs) == 2
    assert info["timing"]["qpu_seconds"] == pytest.approx(
        sum(part["timing"]["qpu_seconds"] for part in info["parts"])
    )


class Even(NealSampler):
    """A QPU's sampler that takes parts apart, each for 0.25 s of its time."""

    @property
    def properties(self) -> dict[str, JSON]:
        """See the base."""
        return {**super().properties, "together": False}

    def sample(
        self,
        bqm: BinaryQuadraticModel,
        *,
        num_reads: int = 10,
        seed: int | None = None,
        num_sweeps: int = 100,
    ) -> SampleSet:
        """See the base."""
        samples = super().sample(bqm, num_reads=num_reads, num_sweeps=num_sweeps)
        samples.info["timing"] = {"qpu_seconds": 0.25}
        return samples


def test_parts_that_take_equally_long_add_up(
    solve: Solve, problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem.write_text(json.dumps({"bqm": ring(2)}))
    monkeypatch.setattr(SfqQpu, "sampler", lambda self: Even())
    _environment(monkeypatch, "unix:/nowhere/socket", "lease")
    assert solve("--reads", "5") == (0, "")
    assert _samples(problem).info["timing"]["qpu_seconds"] == 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "depth=0"], "depth: 0 is out of range"),
        (["--set", "optimiser=spsa"], "optimiser: 'spsa': expected cobyla"),
        (["--set", "angles=7"], "angles: 7: expected a file name"),
    ],
)
def test_what_the_presolve_decides_is_asked_for_rightly_too(
    solve: Solve, options: list[str], words: str
) -> None:
    code, line = solve("--sampler", "qaoa", *options)
    assert code == 2
    assert words in line


def test_a_sampler_that_is_not_usable_here_solves_nothing(
    solve: Solve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QaoaSampler, "problem", lambda: "it is not installed")
    code, line = solve("--sampler", "qaoa")
    assert code == 2
    assert "sampler 'qaoa': it is not installed" in line


def test_parameters_of_a_sampler_by_name(solve: Solve, problem: Path) -> None:
    problem.write_text(json.dumps({"bqm": ring(2)}))
    assert solve("--sampler", "exact", "--set", "time_limit=20.5") == (0, "")
    samples = _samples(problem)
    assert len(samples) == 4
    assert samples.info["time_limit"] == 20.5
    assert samples.info["complete"]
    (problem.parent / "samples.json").unlink()
    code, line = solve("--sampler", "exact", "--set", "time_limit=soon")
    assert code == 2
    assert "time_limit: 'soon': expected a number above 0" in line


def test_qaoa_starts_from_the_last_iterations_angles(
    solve: Solve, problem: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pytest.importorskip("qiskit")
    # a quarter of the reads of a ring of seven are not all optimal, so tuning has a task
    odd = BinaryQuadraticModel("BINARY")
    odd.add_linear_from((i, -1.0) for i in range(7))
    odd.add_quadratic_from((i, (i + 1) % 7, 2.0) for i in range(7))
    problem.write_text(json.dumps({"bqm": odd.to_serializable()}))
    quick = ["--sampler", "qaoa", "--reads", "50", "--set", "depth=1", "--seed", "1"]
    assert solve(*quick) == (0, "")
    before = tmp_path_factory.mktemp("before") / "samples.json"
    (problem.parent / "samples.json").rename(before)
    tuned = json.loads(before.read_text())["info"]["angles"]
    warm = [*quick, "--set", "optimiser=none", "--previous", str(before)]

    def angles(*options: str) -> JSON:
        assert solve(*options) == (0, "")
        told: JSON = _samples(problem).info["angles"]
        (problem.parent / "samples.json").unlink()
        return told

    assert angles(*warm) == tuned
    assert angles(*warm[:-2]) != tuned
    other: JSON = {"gamma": [0.1], "beta": [0.3]}
    assert angles(*warm, "--set", f"angles={json.dumps(other)}") == other
    # who has no angles is not asked to take any
    plain = ["--previous", str(before), "--seed", "1"]
    assert solve("--sampler", "neal", *plain) == (0, "")
    (problem.parent / "samples.json").unlink()
    # and where nothing is left to sample they go on to the next iteration
    bqm = BinaryQuadraticModel({"a": -1.0}, {}, 0.0, "BINARY").to_serializable()
    problem.write_text(json.dumps({"bqm": bqm}))
    assert angles(*warm) == tuned

    before.write_text("{}")
    code, line = solve(*warm)
    assert code == 2
    assert f"{before}: key 'info' is missing; expected samples" in line
    before.write_text('{"info": {"angles": {"gamma": [1]}}}')
    code, line = solve(*warm)
    assert code == 2
    assert "angles: expected angles as qaoa writes them" in line


def test_angles_in_no_folder_are_refused_before_anything_runs(
    solve: Solve, problem: Path
) -> None:
    pytest.importorskip("qiskit")
    for file in (problem.parent / "none" / "angles.json", problem.parent):
        code, line = solve("--sampler", "qaoa", "--set", f"angles={file}")
        assert code == 2
        assert f"{file}: cannot be" in line


@pytest.mark.process
def test_neal_imports_no_other_sampler() -> None:
    code = (
        "import sys; from sf_quantum.samplers.presolve import Presolve;"
        "import sf_quantum.samplers as s; s.load('neal')();"
        "heavy = {'scipy', 'highspy', 'qiskit', 'pulser', 'torch'};"
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.process
def test_solving_on_a_qpu_imports_networkx_only_for_graphs(
    problem: Path, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    _environment(monkeypatch, service.url, service.acquire())
    code = (
        "import sys; from sf_quantum.cli import main;"
        "code = main(['solve', *sys.argv[1:]]);"
        "assert 'dimod' in sys.modules and 'networkx' not in sys.modules;"
        "import dimod; dimod.to_networkx_graph(dimod.BQM({}, {'ab': 1.0}, 'SPIN'));"
        "dimod.generators.graph_partition(3, 2);"
        "assert dimod.generators.min_vertex_coloring([(0, 1), (1, 2)]).variables;"
        "assert dimod.generators.coloring.is_cycle(3);"
        "sys.exit(code)"
    )
    files = ["--problem", str(problem), "--output", str(problem.parent / "s.json")]
    assert subprocess.run([sys.executable, "-c", code, *files]).returncode == 0


def test_who_waits_is_told_once_for_how_long(
    problem: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(service_jobs, "_SUBMISSIONS", "/v1/jobs")
    monkeypatch.setattr(service_job, "SOON_SECONDS", 0.0)
    qaoa = ["--sampler", "qaoa", "--set", "depth=1", "--reads", "2"]
    device = EmulatedDevice(technology="superconducting", qubits=20, time_scale=0)
    for gates, options in ((False, []), (True, qaoa)):
        with running_service(device if gates else None) as service:
            _environment(monkeypatch, service.url, service.acquire())
            output = str(problem.parent / "samples.json")
            files = ["--problem", str(problem), "--output", output]
            assert main(["solve", *files, *options]) == 0
            jobs = len(service.queue.store.jobs.latest())
        assert jobs > 1 if gates else jobs == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("sfq solve: ")
        assert "it is expected to run for " in line
    assert not logging.getLogger(service_job.__name__).handlers


@pytest.mark.process
@pytest.mark.parametrize("name", ["exact", "neal", "qaoa"])
def test_results_are_all_that_a_sampler_writes(name: str, tmp_path: Path) -> None:
    if why := samplers.obstacle(name):
        pytest.skip(why)
    # too large for enumeration by exact, which a library solves that has a banner
    number = ENUMERATED + 2 if name == "exact" else 4
    labels = [*map(str, range(number))]
    pairs = [(i, (i + step) % number) for i in range(number) for step in (1, 2)]
    bqm = BinaryQuadraticModel(
        {}, {(labels[i], labels[j]): 1.0 for i, j in pairs}, "SPIN"
    )
    (tmp_path / "p.json").write_text(json.dumps({"bqm": bqm.to_serializable()}))
    code = "import sys; from sf_quantum.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["solve", "--sampler", name, "--problem", "p.json"]
    command = [sys.executable, "-c", code, *arguments, "--output", "s.json"]
    run = subprocess.run(command, capture_output=True, cwd=tmp_path)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"", b"")
    info = json.loads((tmp_path / "s.json").read_text())["info"]
    if name == "exact":
        assert {type(info[key]) for key in ("proven", "complete")} == {bool}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda each: st.lists(each) | st.dictionaries(st.text(), each),
    )
)
def test_booleans_of_info_are_booleans_in_json(told: JSON) -> None:
    empty = BinaryQuadraticModel({"a": 1.0}, {}, "BINARY")
    found = NealSampler().sample(empty, num_reads=1)
    found.info.update(told=told, numpy=numpy.True_, both=(True, [numpy.int64(1)]))
    info = cast("dict[str, JSON]", json.loads(json.dumps(serialized(found)))["info"])
    # 1 and true are equal in Python
    assert repr(info["told"]) == repr(told)
    assert info["numpy"] is True
    assert repr(info["both"]) == "[True, [1]]"


def test_missing_problem_and_folder(
    problem: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing, folder = str(problem) + "x", str(problem.parent / "no" / "s.json")
    assert main(["solve", "--problem", missing, "--output", "s.json"]) == 2
    assert f"{missing}: cannot be read as problem" in capsys.readouterr().err
    assert main(["solve", "--problem", str(problem), "--output", folder]) == 2
    assert f"{folder}: cannot be written" in capsys.readouterr().err


def test_sigterm_disposition_is_restored(
    solve: Solve, service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    _environment(monkeypatch, service.url, service.acquire())
    assert solve("--reads", "1") == (0, "")
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.process
def test_on_a_qpu_neither_dimod_nor_a_web_library_is_imported() -> None:
    code = (
        "import sys, sf_quantum.cli.tools.solve, sf_quantum.qpu.sfq.service_qpu;"
        "print([name for name in ('dimod', 'numpy', 'requests', 'aiohttp', 'fastapi')"
        " if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert run.stdout.strip() == b"[]"
