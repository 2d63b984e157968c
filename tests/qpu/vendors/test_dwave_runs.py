"""The QPU type ``dwave`` through D-Wave's own tools, on the annealer of our service."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dimod import BinaryQuadraticModel, SampleSet

from sf_quantum import qpu
from sf_quantum.errors import InputError, QpuError
from sf_quantum.files import JSON
from sf_quantum.qpu import NoLease
from sf_quantum.qpu.environment import from_environment, job_environment
from sf_quantum.qpu.vendors.dwave import DWaveQpu
from sf_quantum.qpu.vendors.dwave.client import DWaveClient
from sf_quantum.qpu.vendors.dwave.connection import Connection
from sf_quantum.samplers import problem
from sf_quantum.samplers.presolve import LeasedPresolve
from tests.support.ocean import Ocean, clique, lowest
from tests.support.service import example_bqm
from tests.support.service_process import SFQ
from tests.support.waiting import SECONDS, until

if TYPE_CHECKING:
    from tests.support.projects import Project

pytestmark = pytest.mark.process

SMALL = ["--time-scale", "0", "--qubits", "100", "--seed", "3"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DWAVE_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def ocean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ocean]:
    made = Ocean(tmp_path_factory.mktemp("ocean"), *SMALL, "--vqpus", "2")
    yield made
    made.service.kill()


def config(ocean: Ocean, folder: Path, **changes: JSON) -> dict[str, JSON]:
    token = folder / "token"
    token.write_text(f"{ocean.token}\n")
    return {"url": ocean.endpoint, "tokenFile": str(token), **changes}


@pytest.fixture
def driver(ocean: Ocean, tmp_path: Path) -> DWaveQpu:
    return DWaveQpu.from_config("advantage", config(ocean, tmp_path))


def job_side(driver: DWaveQpu, lease: str) -> qpu.Qpu:
    found = from_environment(job_environment([(driver, lease)]))
    assert found is not None
    return found


def test_status_and_leases(ocean: Ocean, driver: DWaveQpu) -> None:
    told = driver.status()
    assert (told.name, told.technology, told.online) == ("emulator", "annealer", True)
    assert (told.qubits, told.reason) == (100, "")
    assert told.calibration
    lease = driver.acquire("step /solve")
    driver.release(lease)
    driver.release(lease)
    ocean.service.ask("POST", "/v1/device/close", {"message": "maintenance"})
    try:
        assert (driver.status().online, driver.status().reason) == (False, "offline")
        with pytest.raises(NoLease, match="'advantage' is offline"):
            driver.acquire()
    finally:
        ocean.service.ask("POST", "/v1/device/open")


def test_a_problem_is_embedded_and_all_is_told(driver: DWaveQpu) -> None:
    lease = driver.acquire()
    sampler = job_side(driver, lease).sampler()
    for bqm in (clique(8), clique(8).change_vartype("BINARY", inplace=False)):  # type: ignore[arg-type]
        found = sampler.sample(bqm, num_reads=200, seed=1)
        best = lowest(clique(8))
        assert found.first.energy == pytest.approx(best)
        assert found.vartype is bqm.vartype
        assert found.record.energy == pytest.approx(bqm.energies(found))
        info = found.info
        assert (info["reads"], info["seed"], info["qpu"]) == (200, 1, "advantage")
        assert info["device"] == "emulator"
        assert info["chain_strength"] > 1
        assert 0 <= info["chain_break_fraction"] < 1
        assert info["longest_chain"] > 1
        assert info["qubits"] > 8
        # 18.02 ms and 85.86 us a read
        seconds = info["timing"]["qpu_seconds"]
        assert seconds == pytest.approx(0.01802 + 200 * 85.86e-6)
        text = json.dumps(found.to_serializable())
        assert SampleSet.from_serializable(json.loads(text)) == found  # type: ignore[no-untyped-call]
    jobs = driver.jobs(lease)
    assert jobs is not None
    assert [job.state for job in jobs] == ["Completed"] * 2
    assert [job.qpu_seconds for job in jobs] == pytest.approx([seconds] * 2)
    assert {job.id for job in jobs} >= {info["job"]}
    driver.release(lease)
    other = driver.acquire()
    assert driver.jobs(other) == []


@pytest.mark.parametrize("vartype", ["SPIN", "BINARY"])
def test_an_offset_is_in_every_energy(driver: DWaveQpu, vartype: str) -> None:
    bqm = clique(4).change_vartype(vartype, inplace=False)  # type: ignore[arg-type]
    bqm.offset += 7.25
    job = job_side(driver, driver.acquire())
    for sampler in (job.sampler(), LeasedPresolve(job.sampler())):
        found = sampler.sample(bqm, num_reads=50, seed=1)
        assert found.record.energy == pytest.approx(bqm.energies(found))
        assert found.first.energy == pytest.approx(lowest(clique(4)) + 7.25)


def test_weak_chains_break_and_it_says_so(driver: DWaveQpu) -> None:
    sampler = job_side(driver, driver.acquire()).sampler()
    weak = sampler.sample(clique(8), num_reads=200, seed=1, chain_strength=0.05)
    assert weak.info["chain_strength"] == 0.05
    strong = sampler.sample(clique(8), num_reads=200, seed=1)
    assert weak.info["chain_break_fraction"] > 0.05
    assert weak.info["chain_break_fraction"] > strong.info["chain_break_fraction"]


def test_solve_gives_json(driver: DWaveQpu) -> None:
    job = job_side(driver, driver.acquire())
    samples = job.solve(example_bqm(), {"num_reads": 20, "seed": None})
    found: SampleSet = SampleSet.from_serializable(json.loads(json.dumps(samples)))  # type: ignore[no-untyped-call]
    assert found.first.energy == -1.75
    with pytest.raises(InputError, match="num_sweeps: not a parameter of"):
        job.solve(example_bqm(), {"num_sweeps": 5})


def test_what_it_refuses(ocean: Ocean, tmp_path: Path, driver: DWaveQpu) -> None:
    sampler = job_side(driver, driver.acquire()).sampler()
    with pytest.raises(InputError, match="40 variables: no embedding found"):
        sampler.sample(clique(40), num_reads=1)
    # before it looks for an embedding
    with pytest.raises(InputError, match=r"num_reads: 1e\+06 .* takes 1 to 10000"):
        sampler.sample(clique(40), num_reads=10**6)
    with pytest.raises(InputError, match=r"annealing_time: 1e\+06 .* 0.5 to 2000"):
        sampler.sample(clique(40), annealing_time=1e6)
    with pytest.raises(InputError, match=r"problem_run_duration: 2\S*e\+07 .* 1e\+06"):
        sampler.sample(clique(40), num_reads=10_000, annealing_time=2000)
    for name in ("num_reads", "annealing_time", "chain_strength"):
        with pytest.raises(InputError, match=f"{name}: 'long'"):
            sampler.sample(clique(3), **{name: "long"})
    with pytest.raises(InputError, match="seed: -1 is out of range"):
        sampler.sample(clique(3), seed=-1)
    wrong = tmp_path / "wrong"
    wrong.write_text("sfq_of-nobody")
    with pytest.raises(InputError, match="'q' refuses"):
        DWaveQpu.from_config(
            "q", config(ocean, tmp_path, tokenFile=str(wrong))
        ).status()
    with pytest.raises(InputError, match="'q' refuses"):
        DWaveQpu.from_config("q", config(ocean, tmp_path, resource="none")).status()
    for url in ("127.0.0.1:9/sapi/v2", "ftp://127.0.0.1:9/sapi/v2", "http://"):
        with pytest.raises(InputError, match="QPU 'q'"):
            DWaveQpu.from_config("q", config(ocean, tmp_path, url=url)).status()
    nobody = config(ocean, tmp_path, url="http://127.0.0.1:9/sapi/v2")
    with pytest.raises(QpuError, match="QPU 'q'"):
        DWaveQpu.from_config("q", nobody).status()


def test_trying_again_is_no_use_where_it_refuses(driver: DWaveQpu) -> None:
    from dwave.cloud import exceptions as known
    from dwave.cloud.api import exceptions as answered

    for refusal in (
        answered.ResourceBadRequestError("no such state"),
        answered.ResourceAccessForbiddenError("not yours"),
        known.UnsupportedSolverError("no graph"),
        known.SolverError(error_msg="no such state", error_code=400),
    ):
        with (
            pytest.raises(InputError, match=r"'advantage'.*: no"),
            driver.client.errors(),
        ):
            raise refusal
    for trouble in (
        answered.ResourceLimitsExceededError("too many"),
        known.SolverError(error_msg="too many", error_code=429),
        known.SolverError(error_msg="too many", error_code=503),
        known.SolverFailureError("too many"),
    ):
        with pytest.raises(QpuError, match="too many"), driver.client.errors():
            raise trouble


def test_interrupted_it_cancels_its_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a job of 1000 reads takes 104 s here
    ocean = Ocean(tmp_path / "slow", "--time-scale", "1000", "--qubits", "40")
    try:
        driver = DWaveQpu.from_config("q", config(ocean, tmp_path))
        lease = driver.acquire()
        sampler = job_side(driver, lease).sampler()

        def interrupt(*_: str) -> None:
            until(lambda: ocean.service.jobs() == ["Running"], "a running problem")
            raise KeyboardInterrupt

        # in the main thread a signal would do it
        monkeypatch.setattr(DWaveClient, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sampler.sample(clique(3), num_reads=1000)
        assert ocean.service.jobs() == ["Cancelled"]
        monkeypatch.undo()
        monkeypatch.setenv("DWAVE_CACHE_HOME", str(tmp_path / "cache"))

        # and so does giving the lease back
        told: list[str] = []

        def solve() -> None:
            with pytest.raises(QpuError, match=r"problem [0-9a-f]+ was cancelled"):
                job_side(driver, lease).sampler().sample(clique(3), num_reads=1000)
            told.append("cancelled")

        thread = threading.Thread(target=solve)
        thread.start()
        until(
            lambda: ocean.service.jobs() == ["Cancelled", "Running"],
            "another running problem",
        )
        driver.release(lease)
        thread.join(SECONDS)
        assert told == ["cancelled"]
    finally:
        ocean.service.kill()


def test_sfq_lease_and_solve_from_a_sites_file(ocean: Ocean, tmp_path: Path) -> None:
    site = tmp_path / "qrmi_config.json"
    environment: JSON = {
        "DWAVE_API_ENDPOINT": ocean.endpoint,
        "DWAVE_API_TOKEN": ocean.token,
        "DWAVE_API_SOLVER": "emulator",
    }
    entry: JSON = {"name": "adv", "type": "dwave", "environment": environment}
    site.write_text(json.dumps({"resources": [entry]}))
    (tmp_path / "problem.json").write_text(
        json.dumps({"bqm": problem.check(example_bqm()), "sizes": [1, 1, 1]})
    )
    command = [*SFQ, "lease", "--qrmi-config", str(site), "--qpu", "adv", "--"]
    command += [*SFQ, "solve", "--problem", "problem.json", "--output", "samples.json"]
    done = subprocess.run(
        [*command, "--reads", "50"],
        cwd=tmp_path,
        env=os.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    info = json.loads((tmp_path / "samples.json").read_text())["info"]
    assert (info["sampler"], info["qpu"], info["reads"]) == ("dwave", "adv", 50)
    told = subprocess.run(
        [*SFQ, "qpus", "--qrmi-config", str(site)], capture_output=True, text=True
    )
    assert told.returncode == 0
    assert "annealer" in told.stdout


def test_a_step_of_a_workflow(ocean: Ocean, tmp_path: Path, project: Project) -> None:
    known = config(ocean, tmp_path, type="dwave", resource="emulator")
    # the connector's own keys, as in any StreamFlow file
    project.deployment("adv", "sfq.rest", **known)
    project.solve("solve", "adv")
    assert project.run() == 0, project.log
    (told,) = [event for event in project.events() if event["event"] == "qpu"]
    assert (told["qpu"], told["technology"]) == ("adv", "annealer")
    assert told["state"] == "Completed"
    assert told["qpu_seconds"] == pytest.approx(0.01802 + 5 * 85.86e-6)
    assert not project.leftovers()
    assert ocean.token not in project.log


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"url": None}, "url: missing"),
        ({"ulr": "x"}, "unknown key 'ulr', did you mean 'url'"),
        ({"tokenFile": "/nowhere"}, "/nowhere"),
    ],
)
def test_wrong_configuration(
    ocean: Ocean, tmp_path: Path, changes: dict[str, JSON], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        DWaveQpu.from_config("q", config(ocean, tmp_path, **changes))


def test_half_an_environment() -> None:
    complete = {
        "DWAVE_API_ENDPOINT": "http://127.0.0.1:9/sapi/v2",
        "DWAVE_API_TOKEN": "t",
        "q_QRMI_JOB_ACQUISITION_TOKEN": "l",
    }
    DWaveQpu.from_environment("q", complete)
    # as the SPANK plugin has them
    spank = {f"q_{key}" if key[0] == "D" else key: complete[key] for key in complete}
    assert DWaveQpu.from_environment("q", spank).environment("l") == complete
    for key in complete:
        left = {other: complete[other] for other in complete if other != key}
        with pytest.raises(InputError, match=key):
            DWaveQpu.from_environment("q", left)


def test_solvers_by_name_or_by_features() -> None:
    named = Connection("e", "t", "Advantage_system4.1")
    assert named.options["solver"] == {"name": "Advantage_system4.1"}
    featured = replace(named, solver='{"topology__type": "zephyr"}')
    assert featured.options["solver"] == {"topology__type": "zephyr"}
    with pytest.raises(InputError, match="DWAVE_API_SOLVER"):
        _ = replace(named, solver="{").options


def test_without_the_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert "pip install 'sf-quantum[dwave]'" in str(DWaveQpu.problem())
    driver = DWaveQpu("q", Connection("e", "t"))
    with pytest.raises(InputError, match=r"sf-quantum\[dwave\]"):
        driver.status()
    with pytest.raises(InputError, match=r"sf-quantum\[dwave\]"):
        driver.sampler().sample(BinaryQuadraticModel("SPIN"))
