"""The state folder, and copies of its database."""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sf_quantum.cli import main
from sf_quantum.errors import InputError
from sf_quantum.files import JSON
from sf_quantum.service.device.emulator.device import EmulatedDevice
from sf_quantum.service.state import DATABASE, check_state, store_in
from sf_quantum.service.store.file.backup import back_up
from tests.support.service import RunningService, example_bqm, running_service


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A folder in which a service has been."""
    folder = tmp_path / "state"
    with store_in(folder, False):
        pass
    return folder


def jobs(service: RunningService) -> set[str]:
    return {job["id"] for job in json.loads(service.ask("GET", "/v1/jobs").body)}


def submit(service: RunningService, key: str) -> str:
    body: dict[str, JSON] = {"problem": example_bqm(), "idempotency_key": key}
    return str(
        service.ask("POST", "/v1/jobs", body, lease=service.acquire()).json()["id"]
    )


def test_a_folder_is_used_again(state: Path) -> None:
    with (
        store_in(state, False),
        pytest.raises(InputError, match="another service uses"),
        store_in(state, False),
    ):
        pass
    with store_in(state, True):
        pass
    assert (state / DATABASE).stat().st_mode & 0o777 == 0o600
    with store_in(state.parent / "other", True):
        pass
    assert not (state.parent / "other").exists()


def test_the_log_says_that_nothing_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with store_in(tmp_path / "state", False):
        assert "are lost" not in caplog.text
    with store_in(None, False):
        assert caplog.text.count("are lost when this ends") == 1


@pytest.mark.parametrize("name", [".", DATABASE, "lock"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_can_write_is_refused(state: Path, name: str, mode: int) -> None:
    path = state / name
    path.chmod(path.stat().st_mode | mode)
    with pytest.raises(InputError, match=r"others can write \(chmod go-w\)"):
        check_state(state)


def test_what_another_user_owns_is_refused(state: Path) -> None:
    with pytest.raises(InputError, match="another user owns it"):
        check_state(state, owner=state.stat().st_uid + 1)


def test_a_lost_database_is_refused(state: Path) -> None:
    database = state / DATABASE
    database.unlink()
    for why in ("is missing", "is empty"):
        with pytest.raises(InputError, match=f"{why}, but there was one: restore it"):
            check_state(state)
        assert main(["serve", "--check", "--state", str(state)]) == 2
        database.touch(0o600)
    (state / "lock").write_bytes(b"")
    check_state(state)  # as a first start leaves it that fails
    wal = state / f"{DATABASE}-wal"
    wal.touch(0o600)
    check_state(state)
    wal.write_bytes(b"frames")
    with pytest.raises(InputError, match="is empty"):
        check_state(state)


@pytest.mark.process
def test_a_backup_has_what_was_acknowledged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    state.mkdir(mode=0o700)
    device = EmulatedDevice(time_scale=0)
    with running_service(device, vqpus=9, state=state / DATABASE) as service:
        acknowledged = {submit(service, "a"), submit(service, "b")}
        assert (state / f"{DATABASE}-wal").stat().st_size
        assert main(["admin", "backup", str(copy), "--state", str(state)]) == 0
        later = submit(service, "c")
    size = f"{copy.stat().st_size:,}"
    assert capsys.readouterr().out == f"{copy}: {size} bytes\n"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["copy"]
    assert copy.stat().st_mode & 0o777 == 0o600
    (tmp_path / "qpu.yml").write_text(f"state: {state}")
    stopped = [str(tmp_path / "stopped"), "--config", str(tmp_path / "qpu.yml")]
    assert main(["admin", "backup", *stopped]) == 0
    with running_service(device, state=copy) as service:
        assert jobs(service) == acknowledged
    with running_service(device, state=tmp_path / "stopped") as service:
        assert jobs(service) == {*acknowledged, later}


def test_a_backup_that_fails_leaves_the_last_one(
    tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    copy.write_text("the last one")
    (tmp_path / "none.yml").write_text("vqpus: 2")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / DATABASE).write_text("no database, but long enough" * 100)
    for source, why in (
        (["--state", str(tmp_path / "nowhere")], "name a service's state folder"),
        # as one in a folder of another user
        (["--state", "s" * 300], "no file that this user may read"),
        (["--state", str(tmp_path / "bad")], "file is not a database"),
        (["--config", str(tmp_path / "none.yml")], "has no key state"),
    ):
        assert main(["admin", "backup", str(copy), *source]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert why in line
    assert copy.read_text() == "the last one"
    database = state / DATABASE
    for target, why in (
        (database, "not a file that may be replaced"),
        (state, "not a file that may be replaced"),
        (tmp_path / "nowhere" / "copy", "cannot be written: no such file"),
    ):
        with pytest.raises(InputError, match=why):
            back_up(database, target)
    with closing(sqlite3.connect(database)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
