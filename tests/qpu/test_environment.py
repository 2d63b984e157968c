"""The registry of QPUs, and what a job finds in its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from sf_quantum import qpu
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.qpu import environment as room
from sf_quantum.qpu.environment import from_environment, job_environment, leased
from sf_quantum.qpu.selection import QpuSelection
from sf_quantum.qpu.sfq.service_qpu import SfqQpu

COMPLETE = {
    "QRMI_JOB_QPU_RESOURCES": "one,two",
    "QRMI_JOB_QPU_TYPES": "sfq,pasqal-local",
    "one_SFQ_URL": "unix:/tmp/socket",
    "one_QRMI_JOB_ACQUISITION_TOKEN": "secret",
}


def _without(key: str) -> dict[str, str]:
    return {name: value for name, value in COMPLETE.items() if name != key}


def test_registry_knows_our_service() -> None:
    assert "sfq" in qpu.names()
    assert qpu.load("sfq") is SfqQpu
    for name in qpu.names():
        assert qpu.load(name).type == name


def test_unknown_type_is_told_the_known() -> None:
    with pytest.raises(InputError, match=r"unknown QPU type 'qfs'.*known: .*sfq"):
        qpu.load("qfs")


def test_the_file_of_a_selection_is_read_before_a_name_is_missed(
    tmp_path: Path,
) -> None:
    selection = QpuSelection([], qrmi_config=str(file := tmp_path / "qrmi_config.json"))
    with pytest.raises(InputError, match=r"qrmi_config.json: cannot be read"):
        selection.qpus({})
    file.write_text('{"resources": [{"name": "a"}, {"name": "b"}]}')
    with pytest.raises(InputError, match=r"no QPU: give --qpu; .*\.json has a, b$"):
        selection.qpus({})


def test_nothing_set_is_a_classical_location() -> None:
    classical = {"PATH": "/bin", "QRMI_JOB_ID": "7"}
    assert from_environment(classical) is None
    with pytest.raises(InputError, match="names no QPU: run this as a step"):
        leased(classical)


@pytest.mark.parametrize("prefix", ["QRMI", "SLURM"])
def test_the_first_qpu_is_taken_under_either_name(prefix: str) -> None:
    variables = {
        key.replace("QRMI_JOB_QPU", f"{prefix}_JOB_QPU"): value
        for key, value in COMPLETE.items()
    }
    found = leased(variables)
    assert isinstance(found, SfqQpu)
    assert found.name == "one"


@pytest.mark.parametrize("key", COMPLETE)
def test_half_an_environment_names_the_variable(key: str) -> None:
    with pytest.raises(InputError, match=rf"\b{key}\b"):
        from_environment(_without(key))
    with pytest.raises(InputError, match=rf"\b{key}\b"):
        from_environment({**COMPLETE, key: ""})


def test_a_url_alone_is_half_an_environment() -> None:
    with pytest.raises(InputError, match="one_SFQ_URL is set but QRMI_JOB_QPU_RES"):
        from_environment({"one_SFQ_URL": "unix:/tmp/socket"})


def test_as_many_types_as_resources() -> None:
    with pytest.raises(InputError, match="names 1 types for the 2 QPUs"):
        from_environment({**COMPLETE, "QRMI_JOB_QPU_TYPES": "sfq"})


def test_what_the_driver_writes_the_job_reads(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("bearer\n")
    config: dict[str, JSON] = {"url": "http://127.0.0.1:1", "tokenFile": str(token)}
    driver = SfqQpu.from_config("one", config)
    variables = job_environment([(driver, "secret")])
    assert variables == {
        "QRMI_JOB_QPU_RESOURCES": "one",
        "QRMI_JOB_QPU_TYPES": "sfq",
        "one_SFQ_URL": "http://127.0.0.1:1",
        "one_SFQ_TOKEN_FILE": str(token),
        "one_QRMI_JOB_ACQUISITION_TOKEN": "secret",
    }
    job = from_environment(variables)
    assert job is not None
    assert job.environment("secret") == driver.environment("secret")


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("a-b", {"url": "unix:/s"}, "QPU name 'a-b': use letters"),
        ("q", {}, "url: missing in the configuration of QPU 'q'"),
        ("q", {"ulr": "unix:/s"}, "unknown key 'ulr', did you mean 'url'"),
        ("q", {"url": 3}, "url: expected text"),
        ("q", {"url": "unix:/" + 107 * "s"}, "at most 107 bytes"),
        ("q", {"url": "ftp://host"}, "expected unix:/path.sock, http"),
        (
            "q",
            {"url": "http://qpu.example"},
            "http is for this machine only; use https",
        ),
        ("q", {"url": "http://127.0.0.1:x"}, "127.0.0.1:x: "),
        ("q", {"url": "unix:/s", "tokenFile": "/none"}, "/none: cannot be read as tok"),
        ("q", {"url": "unix:/s", "tokenFile": "/dev/null"}, "/dev/null: empty"),
    ],
)
def test_wrong_configuration(name: str, config: dict[str, JSON], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SfqQpu.from_config(name, config)


def test_a_socket_is_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    client = SfqQpu.from_config("q", {"url": "unix:q.sock"})
    assert client.environment("t")["q_SFQ_URL"] == f"unix:{tmp_path}/q.sock"


@pytest.mark.parametrize(
    "url", ["https://qpu.example", "http://localhost:1", "http://[::1]:1"]
)
def test_right_urls(url: str) -> None:
    assert SfqQpu.from_config("q", {"url": url}).environment("t")["q_SFQ_URL"] == url


@pytest.mark.parametrize("name", ["from_environment", "leased"])
def test_programs_find_their_qpu_in_its_room(name: str) -> None:
    assert getattr(qpu, name) is getattr(room, name)
    with pytest.raises(AttributeError, match="no attribute 'lease_d'"):
        getattr(qpu, "lease_d")  # noqa: B009 - mypy knows that there is none
