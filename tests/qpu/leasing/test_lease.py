"""Leases that one command holds, with a QPU that does what the test tells."""

from __future__ import annotations

import math
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sf_quantum import backoff, deadline
from sf_quantum.backoff import Backoff
from sf_quantum.cli import main
from sf_quantum.cli.qpu import lease
from sf_quantum.errors import InputError, QpuError
from sf_quantum.protocol.leases import LeaseHints
from sf_quantum.qpu import AuthenticationError, LeaseTooLate, NoLease
from sf_quantum.qpu.leasing import held_leases
from sf_quantum.qpu.leasing.held_leases import (
    AcquireOptions,
    LeaseProblem,
    LeaseSet,
    QpuLoss,
    RenewedLease,
    acquire,
)
from sf_quantum.threads import in_thread
from tests.support.shaky_qpu import ShakyQpu
from tests.support.waiting import SECONDS


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "LEASE", Backoff(0.002, 10.0))


def test_a_qpu_in_trouble_is_waited_for_with_one_key() -> None:
    shaky = ShakyQpu(troubles=2)
    said: list[str] = []
    with LeaseSet([shaky], lambda _, error, left: said.append(str(error))) as held:
        held.acquire(AcquireOptions("job"))
        assert held.tokens() == [(shaky, "secret")]
    assert said == ["connection refused"]
    assert len(shaky.keys) == 3
    assert len(set(shaky.keys)) == 1
    assert shaky.released == ["secret"]


@pytest.mark.parametrize("troubles", [0, 1])
def test_only_a_lease_that_is_not_free_is_waited_for(troubles: int) -> None:
    """Neither the start of the program nor the request itself is a wait."""
    with LeaseSet([ShakyQpu(troubles)]) as held:
        held.acquire(AcquireOptions("job"))
    assert (held.waited_seconds > 0) == (troubles > 0)


def test_each_reason_for_a_wait_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = [NoLease("all held"), NoLease("all held"), NoLease("being drained")]
    answers = iter([*reasons, QpuError("refused")])

    def acquire_waiting(*_: str, **__: float) -> str:
        if (reason := next(answers, None)) is not None:
            raise reason
        return "secret"

    shaky, said = ShakyQpu(troubles=0), list[str]()
    monkeypatch.setattr(shaky, "acquire_waiting", acquire_waiting)
    with LeaseSet([shaky], lambda _, error, left: said.append(str(error))) as held:
        held.acquire(AcquireOptions("job"))
    assert said == ["all held", "being drained", "refused"]


def test_a_wait_without_a_limit_says_how_to_set_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for left in (math.inf, 60.0):
        lease._announce_wait(ShakyQpu(0), NoLease("drained"), left)
    first, second = capsys.readouterr().err.splitlines()
    said = "sfq lease: waiting for a lease of QPU q (drained)"
    assert first == f"{said}; no limit, --wait S sets one"
    assert second == f"{said}; given up in 60 s"


@pytest.mark.parametrize(
    ("wait", "error", "end"),
    [
        (None, QpuError("gone"), 120.0),
        (5.0, QpuError("gone"), 5.0),
        (None, NoLease("held"), math.inf),
        (5.0, NoLease("held"), 5.0),
    ],
)
def test_a_wait_says_for_how_long_it_is_still_tried(
    wait: float | None, error: QpuError, end: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([error])

    def acquire_waiting(*_: str, **__: float) -> str:
        if (reason := next(answers, None)) is not None:
            raise reason
        return "secret"

    shaky, said = ShakyQpu(troubles=0), list[float]()
    monkeypatch.setattr(shaky, "acquire_waiting", acquire_waiting)
    acquire(
        shaky, AcquireOptions("job", wait), on_wait=lambda _, left: said.append(left)
    )
    assert said == [pytest.approx(end, rel=0.1)]


def test_a_qpu_that_stays_in_trouble_is_given_up_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shaky = ShakyQpu(troubles=10**6)
    clock = SimpleNamespace(monotonic=lambda: 10.0 * len(shaky.keys))
    monkeypatch.setattr(deadline, "time", clock)
    with (
        LeaseSet([shaky]) as held,
        pytest.raises(QpuError, match="connection refused"),
    ):
        held.acquire(AcquireOptions("job", wait_seconds=25))
    assert len(shaky.keys) == 3


@pytest.mark.parametrize("error", [NoLease("held"), QpuError("gone")])
def test_a_wait_ends_at_the_latest_start(
    error: QpuError, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = time.time() + 0.05
    request = AcquireOptions("job", hints=LeaseHints(latest_start=latest))
    shaky = ShakyQpu(troubles=0)

    def acquire_waiting(*_: str, **__: float) -> str:
        raise error

    monkeypatch.setattr(shaky, "acquire_waiting", acquire_waiting)
    with pytest.raises(QpuError, match=str(error)) as ended:
        acquire(shaky, request)
    assert time.time() >= latest
    # one that does not answer may be asked again by another attempt
    assert isinstance(ended.value, LeaseTooLate) == isinstance(error, NoLease)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("priority", LeaseHints(priority=1)),
        ("reservation", LeaseHints(reservation="monday")),
    ],
)
def test_a_kind_without_them_refuses_priority_and_reservation(
    key: str, hint: LeaseHints
) -> None:
    shaky = ShakyQpu(troubles=0)
    with pytest.raises(
        InputError, match=f"QPU 'q': QPUs of type shaky have no .*: omit {key}$"
    ):
        acquire(shaky, AcquireOptions("job", hints=hint))
    assert shaky.keys == []
    assert (
        acquire(shaky, AcquireOptions("job", hints=LeaseHints(priority=0))) == "secret"
    )


def test_a_request_that_may_not_wait_is_made_before_its_latest_start() -> None:
    shaky, hints = ShakyQpu(troubles=0), LeaseHints(latest_start=time.time() + 3600)
    request = AcquireOptions("job", wait_seconds=0, hints=hints)
    assert acquire(shaky, request) == "secret"


def test_a_qpu_is_not_asked_after_the_latest_start() -> None:
    shaky, late = ShakyQpu(troubles=0), AcquireOptions(
        "job", hints=LeaseHints(latest_start=9)
    )
    with pytest.raises(LeaseTooLate, match="q: not granted by 1970-01-01T00:00:09Z"):
        acquire(shaky, late)
    assert shaky.keys == []
    # a repeated request may have been granted in time
    assert acquire(shaky, replace(late, key="k")) == "secret"


def test_a_lease_that_cannot_be_renewed_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warned, messages = threading.Event(), list[str]()

    def renew(_: str) -> float | None:
        raise InputError("it has ended")

    def warning(text: str, *values: str) -> None:
        messages.append(text % values)
        warned.set()

    shaky = ShakyQpu(troubles=0)
    monkeypatch.setattr(shaky, "renew", renew)
    monkeypatch.setattr(held_leases.logger, "warning", warning)
    lease = RenewedLease(shaky, "secret")
    assert warned.wait(SECONDS)
    assert messages == ["A lease of QPU q is lost: it has ended"]
    lease.release()


def test_renewals_are_not_more_frequent_than_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over, pauses = threading.Event(), list[float | None]()

    class Pauses(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            if len(pauses) == 4:
                over.set()
            return over.is_set()

    replaced = SimpleNamespace(Event=Pauses, Thread=threading.Thread)
    monkeypatch.setattr(held_leases, "threading", replaced)
    shaky, answers = ShakyQpu(troubles=0), iter([0.0, 0.4, 5.0])
    monkeypatch.setattr(shaky, "renew", lambda _: next(answers))
    lease = RenewedLease(shaky, "secret")
    assert over.wait(SECONDS)
    assert pauses == [0.0, 1.0, 1.0, 5.0]
    lease.release()


def test_a_user_who_is_refused_at_a_renewal_leaves_the_qpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def renew(_: str) -> float | None:
        raise AuthenticationError("token revoked")

    shaky = ShakyQpu(troubles=0)
    monkeypatch.setattr(shaky, "renew", renew)
    monkeypatch.setattr(held_leases, "POLL_SECONDS", 0.01)
    left, losses = threading.Event(), list[QpuLoss]()

    def leave(loss: QpuLoss) -> None:
        losses.append(loss)
        left.set()

    with LeaseSet([shaky]) as held, held_leases.monitoring([held.refusal], leave):
        held.acquire(AcquireOptions("job"))
        assert left.wait(SECONDS)
    (loss,) = losses
    assert (loss.problem, str(loss)) == (LeaseProblem.REFUSED, "token revoked")


def test_what_the_service_says_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    reason = QpuError("the QPU is closed:\n\x1b[2Jhelium")
    lease._announce_wait(ShakyQpu(0), reason, 60.0)
    text = "waiting for a lease of QPU q (the QPU is closed: \\x1b[2Jhelium); given up in 60 s"
    assert capsys.readouterr().err == f"sfq lease: {text}\n"


def test_a_wait_that_is_asked_for_bears_trouble_as_long() -> None:
    shaky = ShakyQpu(troubles=3)
    request = AcquireOptions("job", wait_seconds=30, trouble_seconds=0)
    assert acquire(shaky, request) == "secret"
    shaky = ShakyQpu(troubles=10**6)
    with pytest.raises(QpuError, match=r"given up after 0.02 s, --wait or .* sets how"):
        acquire(shaky, AcquireOptions("job", trouble_seconds=0.02))


def test_a_service_without_tls_is_a_wrong_url_and_not_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        answered = in_thread(answer)
        at = f"://127.0.0.1:{server.getsockname()[1]}"
        assert main(["lease", "--url", f"https{at}", "--", "true"]) == 2
        answered.result()
    line = f"sfq lease: https{at}: speaks no TLS; use http{at}\n"
    assert capsys.readouterr().err == line
