"""Health: whether the service answers, and whether it takes work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sf_quantum.files import JSON
from sf_quantum.service.http import auth
from sf_quantum.service.http.tokens import MungeOrTokens, Tokens, token_entry
from sf_quantum.service.queue.upkeep import readiness
from sf_quantum.service.store.file import disk
from tests.support.service import RunningService, example_bqm, running_service

pytestmark = pytest.mark.devices("sfq", "dwave", "acme")


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "SECONDS", 0.0)


def ready(service: RunningService) -> str | None:
    """Why it is not ready, if it is not; it is alive in any case."""
    assert service.ask("GET", "/v1/health/live").json() == {"status": "ok"}
    answer = service.ask("GET", "/v1/health/ready")
    assert answer.status == (200 if answer.json() == {"status": "ok"} else 503)
    return None if answer.status == 200 else str(answer.json()["detail"])


def test_ready_means_that_work_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_service() as service:
        assert ready(service) is None
        service.ask("POST", "/v1/device/drain", {"message": "new laser"})
        assert ready(service) == "the QPU is being drained: new laser"
        service.ask("POST", "/v1/device/open")
        assert ready(service) is None
        with monkeypatch.context() as patch:
            patch.setattr(disk, "LEAST_FREE_BYTES", 2**80)
            assert " MiB are free for the state, " in str(ready(service))
            body: dict[str, JSON] = {
                "problem": example_bqm(),
                "idempotency_key": "a",
            }
            refused = service.ask("POST", "/v1/jobs", body, lease=service.acquire())
            assert refused.status == 503
            assert "needed" in str(refused.json()["detail"])
        change = service.queue.store.change
        change(lambda db: db.execute("PRAGMA query_only = ON") and None).result()
        why = "the state cannot be written: attempt to write a readonly database"
        assert ready(service) == why
        assert service.ask("GET", "/v1/health").status == 200
        service.queue.store._writer.execute("PRAGMA query_only = OFF")
        assert ready(service) is None


def test_each_look_writes_to_the_disk(tmp_path: Path) -> None:
    with running_service(state=tmp_path / "state") as service:
        assert ready(service) is None
        written = (tmp_path / "state-wal").stat().st_size
        assert ready(service) is None
        assert (tmp_path / "state-wal").stat().st_size > written


def test_a_state_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    database = tmp_path / "state" / "service.sqlite"
    with running_service(state=database) as service:
        assert ready(service) is None
        # SQLite goes on with a file that nobody will find again
        database.unlink()
        assert str(ready(service)).startswith("the state is gone: ")
        shutil.rmtree(database.parent)
        assert str(ready(service)).startswith("the state is gone: ")


def test_an_answer_holds_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "SECONDS", 3600.0)
    with running_service() as service:
        assert ready(service) is None
        service.ask("POST", "/v1/device/drain", {})
        assert ready(service) is None
        # not the QPU's
        assert service.ask("GET", "/v1/health").status == 200


@pytest.mark.parametrize("beside_munge", [False, True])
def test_tokens_that_cannot_be_read(tmp_path: Path, beside_munge: bool) -> None:
    path = tmp_path / "tokens.yml"
    path.touch(0o600)
    path.write_text(json.dumps([token_entry("ann", "secret", admin=False)]))
    tokens = Tokens(path)
    both = MungeOrTokens(auth.LOCAL_USER, tokens) if beside_munge else tokens
    with running_service(authenticate=both) as service:
        assert ready(service) is None
        path.chmod(0o644)
        assert str(ready(service)).startswith("the tokens cannot be read: ")
        headers = {"Authorization": "Bearer secret"}
        assert service.ask("GET", "/v1/jobs", headers=headers).status == 503
        path.chmod(0o600)
        assert ready(service) is None
        assert service.ask("GET", "/v1/jobs", headers=headers).status == 200
