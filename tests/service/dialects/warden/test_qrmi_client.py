"""The stock ``qrmi`` client from PyPI, and others, on one ``sfq serve --auth munge``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.net.transport import Client
from sf_quantum.service.device.emulator.atoms import runner
from sf_quantum.testing.samplers import problem as ring
from tests.support import forking
from tests.support.service import example_bqm
from tests.support.waiting import SECONDS, until
from tests.support.warden_service import NAME, SEQUENCE, SFQ, Service, serving

# where leases are the matter, and no sequences, which only the first takes, also the others
pytestmark = [pytest.mark.process, pytest.mark.devices("sfq")]
NOBODY, DAEMON = 65534, 1
FINAL = ("TaskStatus.Completed", "TaskStatus.Failed", "TaskStatus.Cancelled")


Start = Callable[..., Service]


@pytest.fixture
def start(
    alone: list[str], munge_socket: Path, tmp_path: Path
) -> Iterator[Callable[..., Service]]:
    """Starts a service of neutral atoms, 1000 times as fast as real ones."""
    with ExitStack() as stack:

        def run(**config: JSON) -> Service:
            whole: dict[str, JSON] = {
                "auth": {"mode": "munge", "munge": str(munge_socket)},
                "device": {"technology": "neutral-atom", "time_scale": 0.001},
                **config,
            }
            url = stack.enter_context(serving(whole, tmp_path))
            service = Service(url, munge_socket, alone)
            stack.callback(service.close)
            return service

        yield run


with_pulser = pytest.mark.skipif(
    not runner.available(), reason="pulser-simulation is not installed"
)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users")


@with_pulser
def test_the_stock_client_end_to_end(start: Start) -> None:
    service = start()
    stock = service.stock(os.geteuid())
    assert json.loads(stock("status"))["status"] == "online"
    token = stock("acquire")
    (device,) = json.loads(stock("target"))
    assert device["device_type"] == "AnalogDevice"
    assert json.loads(device["specs"])["max_atom_num"] == 14

    task = stock("task_start", SEQUENCE, "100")
    assert stock.until(task, *FINAL) == "TaskStatus.Completed"
    counts = json.loads(stock("task_result", task))["counter"]
    assert sum(counts.values()) == 100
    # the two atoms are too close for both to be excited
    assert counts.get("11", 0) < 10 < counts["01"]
    assert "DONE" in stock("task_logs", task)
    assert "409" in stock.error("task_stop", task)

    long = stock("task_start", SEQUENCE, "100000")
    stock.until(long, "TaskStatus.Running")
    stock("task_stop", long)
    assert stock("task_status", long) == "TaskStatus.Cancelled"
    assert "esult" in stock.error("task_result", long)
    assert "404" in stock.error("task_status", "999")

    stock("release", token)
    assert "403" in stock.error("task_start", SEQUENCE, "1")
    stock("release", token)


@with_pulser
def test_solve_runs_a_qubo_on_it_as_a_sequence(
    start: Start, alone: list[str], tmp_path: Path
) -> None:
    service = start(device={"technology": "neutral-atom", "time_scale": 0})
    stock = service.stock(os.geteuid())
    token = stock("acquire")
    bqm: dict[str, JSON] = ring().to_serializable()
    (tmp_path / "problem.json").write_text(json.dumps({"bqm": bqm}))
    told = {
        "QRMI_JOB_QPU_RESOURCES": NAME,
        "QRMI_JOB_QPU_TYPES": "pasqal-local",
        "QRMI_JOB_UID": str(os.geteuid()),
        f"{NAME}_QRMI_WARDEN_URL": service.url,
        f"{NAME}_QRMI_JOB_ACQUISITION_TOKEN": token,
    }
    command = "solve --problem problem.json --output samples.json --reads 200 --seed 1"
    done = subprocess.run(
        [*alone, *SFQ, *command.split()],
        cwd=tmp_path,
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    info = json.loads((tmp_path / "samples.json").read_text())["info"]
    assert info["sampler"] == "neutral-atom"
    assert (info["machine"], info["device"]) == (NAME, "AnalogDevice")
    assert info["energy"] == info["optimum"] == -1.5
    assert info["optimal_share"] > 0.5
    assert info["timing"]["qpu_seconds"] > 0
    assert "DONE" in stock("task_logs", "1")


# a sequence is read by the device
@pytest.mark.devices
@with_pulser
def test_a_wrong_sequence_is_refused_with_its_reason(start: Start) -> None:
    stock = start().stock(os.geteuid())
    stock("acquire")
    wrong = SEQUENCE.replace('"g": "rydberg_global"', '"g": "nope"')
    told = stock.error("task_start", wrong, "1")
    assert "422" in told
    assert "channel" in told


@pytest.mark.devices("sfq", "dwave", "acme")
def test_slots_and_the_door_as_the_stock_client_sees_them(start: Start) -> None:
    service = start()
    first, second = (service.stock(os.geteuid(), job) for job in ("12", "13"))
    token = first("acquire")
    assert "Not enough QPU slots available." in second.error("acquire")
    first("release", token)
    second("acquire")
    closed: dict[str, JSON] = {"is_accessible": False, "message": "calibration"}
    if os.geteuid() != 0:
        assert service.ask("POST", "/accessible", closed).status == 403
        return
    assert service.ask("POST", "/accessible", closed).status == 200
    status = json.loads(first("status"))
    assert status["status"] != "online"
    assert "503" in first.error("acquire")
    service.ask("POST", "/accessible", {"is_accessible": True})
    assert json.loads(first("status"))["status"] == "online"


@as_root
@with_pulser
def test_wardens_rule_root_leases_for_users(start: Start) -> None:
    service = start(leases={"by": "root"}, device={"time_scale": 0})
    session: dict[str, JSON] = {"user_id": str(NOBODY), "slurm_job_id": "12"}
    refused = service.ask("POST", "/sessions", session, uid=NOBODY)
    assert refused.status == 403
    stock = service.stock(NOBODY)
    token = stock("acquire")
    job: dict[str, JSON] = {"sequence": SEQUENCE, "shots": 10}
    header = {"X_Warden_Session": token}
    assert service.ask("POST", "/jobs", job, uid=DAEMON, **header).status == 403
    made = service.ask("POST", "/jobs", job, uid=NOBODY, **header).json()
    assert made["user_id"] == str(NOBODY)
    path = f"/jobs/{made['id']}"
    for other in ("", "/logs"):
        assert service.ask("GET", path + other, uid=DAEMON).status == 404
        assert service.ask("GET", path + other, uid=NOBODY).status == 200
    assert service.ask("POST", f"{path}/cancel", uid=DAEMON).status == 404
    assert service.ask("DELETE", f"/sessions/{token}", uid=NOBODY).status == 403
    stock("release", token)
    assert service.ask("GET", "/acct", uid=NOBODY).status == 403
    (row,) = json.loads(service.ask("GET", "/acct").body)["data"]
    assert (row["user_id"], row["sessions"]["count"]) == (str(NOBODY), 1)
    assert row["jobs"]["shots"] == 10


@pytest.mark.devices("sfq", "dwave", "acme")
def test_a_credential_holds_once_and_is_needed(start: Start) -> None:
    service = start()
    assert Client(service.url, {}).request("GET", "/accessible").status == 200
    assert Client(service.url, {}).request("GET", "/jobs").status == 401
    again = Client(service.url, {"X-Munge-Cred": service.credential(os.geteuid())})
    assert again.request("GET", "/jobs").status == 200
    assert again.request("GET", "/jobs").status == 401


OURS = """
import json, sys
from sf_quantum import qpu
from sf_quantum.qpu.environment import job_environment
from sf_quantum.errors import InputError
path, name = sys.argv[1:]
made = qpu.load("pasqal-local").from_config(name, {"qrmiConfig": path})
token = made.acquire("a job")
told = [made.status().online, *sorted(job_environment([(made, token)]))]
for _ in range(2):
    made.release(token)
token = made.acquire("another")
try:
    made.acquire("one too many")
except qpu.NoLease as error:
    told.append(str(error))
made.release(token)
sys.stdout.write(json.dumps(told))
"""


@pytest.mark.devices("sfq", "dwave", "acme")
def test_our_own_driver_of_the_stock_client(
    start: Start, alone: list[str], tmp_path: Path
) -> None:
    service = start()
    resource: JSON = {
        "name": NAME,
        "type": "pasqal-local",
        "environment": {"QRMI_WARDEN_URL": service.url},
    }
    path = tmp_path / "qrmi_config.json"
    path.write_text(json.dumps({"resources": [resource]}))
    done = subprocess.run(
        [*alone, sys.executable, "-c", OURS, str(path), NAME],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    online, *variables, refused = json.loads(done.stdout)
    assert online is True
    assert variables == [
        "QRMI_JOB_ID",
        "QRMI_JOB_QPU_RESOURCES",
        "QRMI_JOB_QPU_TYPES",
        "QRMI_JOB_UID",
        f"{NAME}_QRMI_JOB_ACQUISITION_TOKEN",
        f"{NAME}_QRMI_JOB_TIMEOUT_SECONDS",
        f"{NAME}_QRMI_WARDEN_URL",
    ]
    assert "Not enough QPU slots available." in refused


PULSER = """
import os, sys, warnings
warnings.simplefilter("ignore")
from pulser import Pulse, Register, Sequence
from pulser.backend.remote import JobParams
from qrmi import QuantumResource, ResourceType
from qrmi.pulser import PulserQRMIConnection
resource = QuantumResource("local_qpu", ResourceType.PasqalLocal)
token = resource.acquire()
os.environ["local_qpu_QRMI_JOB_ACQUISITION_TOKEN"] = token
connection = PulserQRMIConnection()
(device,) = connection.fetch_available_devices().values()
sequence = Sequence(Register({"a": (0, 0), "b": (0, 6)}), device)
sequence.declare_channel("g", "rydberg_global")
sequence.add(Pulse.ConstantPulse(400, 6.0, 0.0, 0.0), "g")
sequence.measure("ground-rydberg")
done = connection.submit(sequence, wait=True, job_params=[JobParams(runs=30)])
sys.stdout.write(str(sum(done.results[0].final_bitstrings.values())))
resource.release(token)
"""


@with_pulser
def test_a_pulser_program_runs_unchanged(start: Start, alone: list[str]) -> None:
    service = start()
    environment = {
        f"{NAME}_QRMI_WARDEN_URL": service.url,
        "QRMI_JOB_UID": str(os.geteuid()),
        "QRMI_JOB_ID": "12",
        "QRMI_JOB_QPU_RESOURCES": NAME,
        "QRMI_JOB_QPU_TYPES": "pasqal-local",
    }
    done = subprocess.run(
        [*alone, sys.executable, "-c", PULSER],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "30", done.stderr


@with_pulser
def test_three_clients_share_a_device_by_their_classes(
    start: Start, alone: list[str], tmp_path: Path
) -> None:
    curl = shutil.which("curl") or pytest.skip("curl is not installed")
    # of the stock client, which cannot ask for a class
    service = start(classes={"default": "test"}, vqpus=4)
    leases = {
        name: str(service.ask("POST", "/v1/leases", {"class": class_}).json()["id"])
        for name, class_ in [
            ("blocker", "production"),
            ("solve", "production"),
            ("curl", "development"),
        ]
    }
    blocker = service.ask(
        "POST",
        "/v1/jobs",
        {
            "problem": example_bqm(),
            "idempotency_key": "blocker",
            "parameters": {"num_reads": 100_000},
        },
        X_SFQ_Lease=leases["blocker"],
    ).json()
    with ExitStack() as stack:
        # the last of the order comes first
        body = {"problem": example_bqm(), "idempotency_key": "curl"}
        headers = {
            "X-Munge-Cred": service.credential(os.geteuid()),
            "X-SFQ-Lease": leases["curl"],
            "Content-Type": "application/json",
        }
        posted = subprocess.run(
            [
                *(curl, "-sf", f"{service.url}/v1/jobs", "-d", json.dumps(body)),
                *(
                    word
                    for name in headers
                    for word in ("-H", f"{name}: {headers[name]}")
                ),
            ],
            capture_output=True,
        )
        assert posted.returncode == 0
        stock = service.stock(os.geteuid())
        stock("acquire")
        task = stock("task_start", SEQUENCE, "1")
        (tmp_path / "problem.json").write_text(json.dumps({"bqm": example_bqm()}))
        files = ["--problem", "problem.json", "--output", "samples.json"]
        solve = stack.enter_context(
            subprocess.Popen(
                [f"{forking.stand_ins()}/sfq", "solve", *files],
                cwd=tmp_path,
                env={
                    **os.environ,
                    "QRMI_JOB_QPU_RESOURCES": "q",
                    "QRMI_JOB_QPU_TYPES": "sfq",
                    "q_SFQ_URL": service.url,
                    "q_SFQ_MUNGE": str(service.socket),
                    "q_QRMI_JOB_ACQUISITION_TOKEN": leases["solve"],
                },
            )
        )
        stack.callback(solve.kill)
        _until_waiting(service, 3)
        service.ask("DELETE", f"/v1/jobs/{blocker['id']}")
        assert solve.wait(SECONDS) == 0
        assert stock.until(task, *FINAL) == "TaskStatus.Completed"
    jobs = _jobs(service)
    last = service.ask("GET", f"/v1/jobs/{jobs[-1]['id']}?wait=30").json()
    assert last["state"] == "Completed"
    order = sorted(_jobs(service), key=lambda job: str(job["started"]))
    assert [(job["class"], job["kind"]) for job in order] == [
        ("production", "problem"),
        ("production", "problem"),
        ("test", "sequence"),
        ("development", "problem"),
    ]
    assert (tmp_path / "samples.json").exists()


def _jobs(service: Service) -> list[dict[str, JSON]]:
    jobs: list[dict[str, JSON]] = json.loads(service.ask("GET", "/v1/jobs").body)
    return jobs


def _until_waiting(service: Service, number: int) -> None:
    until(
        lambda: sum(job["state"] == "Queued" for job in _jobs(service)) >= number,
        f"{number} jobs that wait",
    )
