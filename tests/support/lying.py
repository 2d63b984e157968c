"""A vendor that lies: a proxy before one that does not, which changes its answers.

A lie is about what a client believes, so each protocol has its own words for it
(:class:`Words`). :class:`Odd` changes any answer at any place.
"""

from __future__ import annotations

import base64
import json
import math
import random
import re
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self, TypeAlias
from urllib.parse import urlsplit

from sf_quantum.files import JSON, listing, mapping
from sf_quantum.testing.qpus import Lie

#: changes an answer: method and path of the request, and its content; text is sent as it is
Change: TypeAlias = "Callable[[str, str, JSON], JSON | bytes]"
ESCAPES = "\x1b[2Jboo\n" + "x" * 10**5
NOT_JSON = '{"x": <<<not json>>>}'
SECONDS = 1e9
#: in the path of a request for a job, in any protocol
JOBS = re.compile("/(jobs|problems)")
# of requests and answers, not of what they carry
HOP = ("connection", "content-length", "transfer-encoding", "accept-encoding", "host")


class _Handler(BaseHTTPRequestHandler):
    server: Lying

    def handle_one_request(self) -> None:
        """Take any method."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        own = {k: v for k, v in self.headers.items() if k.lower() not in HOP}
        # who has asked, or who is asked, may be gone at any time
        with suppress(OSError):
            self.answer(*self.ask(body, own))
        self.close_connection = True

    def ask(
        self, body: bytes, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """Pass the request on."""
        with closing(HTTPConnection(self.server.upstream, timeout=60)) as connection:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Pass the answer back, or a lie in its place."""
        content = self.server.changed(self.command, self.path, body)
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: str) -> None:
        """Say nothing."""


class Lying(ThreadingHTTPServer):
    """The proxy.

    :param upstream: URL of the vendor that does not lie
    """

    request_queue_size = 64

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = urlsplit(upstream).netloc
        self.change: Change | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def changed(self, method: str, path: str, body: bytes) -> bytes:
        if self.change is None or not body:
            return body
        try:
            content = json.loads(body)
        except ValueError:
            return body
        told = self.change(method, path, content)
        return told if isinstance(told, bytes) else json.dumps(told).encode()


@contextmanager
def lying(upstream: str) -> Iterator[Lying]:
    """Serve in a thread."""
    with Lying(upstream) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Liars:
    """Makes proxies that lie, each about one thing; all end together.

    :param words: of the protocol
    :param upstream: URL of the vendor that does not lie
    """

    def __init__(self, words: Callable[[], Words], upstream: str) -> None:
        self._words = words
        self._upstream = upstream
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self, lie: Lie) -> str | None:
        """Return the URL of a vendor that tells a lie; ``None`` if it has no words."""
        if (change := self._words().change(lie)) is None:
            return None
        server = self._stack.enter_context(lying(self._upstream))
        server.change = change
        return server.url


# lies in the words of a protocol


@dataclass
class Words:
    """How a protocol says what is lied about.

    :param results: by lie, what becomes of an answer with a result
    :param is_result: whether an answer has a result
    :param others: by another lie, the change of the answers
    :param ids: whether an answer may have the id of a new job
    :param id_key: key of this id
    """

    is_result: Callable[[str, str, JSON], bool]
    results: Mapping[Lie, Callable[[JSON], JSON | bytes]]
    others: Mapping[Lie, Change]
    ids: Callable[[str, str, JSON], bool]
    id_key: str
    first: list[JSON] = field(default_factory=list)

    def change(self, lie: Lie) -> Change | None:
        """Make a change of answers that tells a lie; ``None`` if there are no words."""
        if lie in ("one id", "other job"):
            self.first.clear()
            return self._one_id if lie == "one id" else _Stuck(self.id_key)
        if lie in self.others:
            return self.others[lie]
        if (made := self.results.get(lie)) is None:
            return None

        def change(method: str, path: str, told: JSON) -> JSON | bytes:
            return made(told) if self.is_result(method, path, told) else told

        return change

    def _one_id(self, method: str, path: str, told: JSON) -> JSON:
        one = mapping(next(iter(listing(told)), None))
        # A busy vendor may refuse a submission, and its reason has no id.
        if not self.ids(method, path, told) or self.id_key not in one:
            return told
        if not self.first:
            self.first.append(one[self.id_key])
        one = {**one, self.id_key: self.first[0]}
        return [one] if isinstance(told, list) else one


class _Stuck:
    """A cache that answers each question for a job with what it knows of the first one.

    :param id_key: of a job's id
    """

    def __init__(self, id_key: str) -> None:
        self._key = id_key
        self._first: dict[str, JSON] = {}

    def __call__(self, method: str, path: str, told: JSON) -> JSON:
        several = isinstance(told, list)
        content = listing(told) if several else [told]
        job = mapping(content[0]) if len(content) == 1 else {}
        if method != "GET" or not JOBS.search(path) or self._key not in job:
            return told
        self._first = self._first or job
        if job[self._key] == self._first[self._key]:
            self._first = {**self._first, **job}
        return [self._first] if several else self._first


def _of(path: str, *begins: str) -> bool:
    return path.startswith(begins)


# our own service: jobs with results of every kind


def _ours(change: Callable[[dict[str, JSON]], JSON]) -> Callable[[JSON], JSON | bytes]:
    """Change a result, whose ``info`` stays behind it, and is not a part of it."""

    def changed(told: JSON) -> JSON:
        content = mapping(told)
        info = content.pop("info", {})
        return {**mapping(change(content)), "info": info}

    return changed


def _vector(told: dict[str, JSON], name: str, value: JSON) -> JSON:
    if "vectors" not in told:
        counter = mapping(told["counter"])
        return {**told, "counter": {**counter, next(iter(counter)): value}}
    vectors = mapping(told["vectors"])
    array = mapping(vectors[name])
    data: JSON = [value, *listing(array["data"])[1:]]
    array = {**array, "data": data, "data_type": "float64"}
    return {**told, "vectors": {**vectors, name: array}}


def _other_variables(told: dict[str, JSON]) -> JSON:
    if "vectors" not in told:
        counter = mapping(told["counter"])
        return {"counter": {_longer(word): n for word, n in counter.items()}}
    labels = listing(told["variable_labels"])
    return {**told, "variable_labels": [*labels[1:], "somebody else's"]}


def _longer(word: str) -> str:
    return f"{word[:-1]},0>" if word.startswith("|") else f"{word}0"


def _of_another_kind(told: dict[str, JSON]) -> JSON:
    return {"counter": {"01": 100}} if "vectors" in told else {"type": "SampleSet"}


def _energies(told: dict[str, JSON]) -> JSON:
    return _vector(told, "energy", -1000.0) if "vectors" in told else told


def _in_ours(method: str, path: str, told: JSON) -> bool:
    return path.endswith("/result")


def _our_job(**changes: JSON) -> Change:
    def change(method: str, path: str, told: JSON) -> JSON:
        one = mapping(told)
        if "/v1/jobs" in path and one.get("state") in ("Completed", "Failed"):
            return {**one, **changes}
        return told

    return change


def _our_device(method: str, path: str, told: JSON) -> JSON:
    if path != "/v1/device":
        return told
    calibration: JSON = {
        "id": ESCAPES,
        "time": "9999-01-01",
        "values": {ESCAPES: 1e999},
    }
    return {
        **mapping(told),
        "queue_length": 10**30,
        "eta_seconds": math.nan,
        "cost_per_second": -math.inf,
        "trouble": ESCAPES,
        "calibration": calibration,
        "qubits": 10**30,
        "timing": {"setup_seconds": math.inf, "shot_seconds": -1.0},
    }


def ours() -> Words:
    """The words of ``/v1``."""
    results: dict[Lie, Callable[[JSON], JSON | bytes]] = {
        "kind": _ours(_of_another_kind),
        "variables": _ours(_other_variables),
        "more reads": _ours(lambda told: _vector(told, "num_occurrences", 1000)),
        "fewer reads": _ours(lambda told: _vector(told, "num_occurrences", 0)),
        "not finite": _ours(lambda told: _vector(told, "energy", math.nan)),
        "not JSON": lambda _: b'{"x": <<<not json>>>, "info": {}}',
        "energies": _ours(_energies),
    }
    return Words(
        _in_ours,
        results,
        {
            "times": _our_job(qpu_seconds=SECONDS, seconds=SECONDS),
            "texts": _our_job(state="Failed", note=ESCAPES),
            "status": _our_device,
        },
        lambda method, path, _: method == "POST" and path.startswith("/v1/jobs"),
        "id",
    )


# warden: a job's result is a text in it


def _in_warden(told: JSON, change: Callable[[JSON], JSON | bytes]) -> JSON:
    job = mapping(told)
    made = change(json.loads(str(job["results"])))
    text = made.decode() if isinstance(made, bytes) else json.dumps(made)
    return {**job, "results": text}


def _warden(change: Callable[[JSON], JSON | bytes]) -> Callable[[JSON], JSON | bytes]:
    return lambda told: _in_warden(told, change)


def warden() -> Words:
    """The words of warden's API."""
    results: dict[Lie, Callable[[JSON], JSON | bytes]] = {
        lie: _warden(made) for lie, made in ours().results.items() if lie != "energies"
    }
    results["times"] = _warden(
        lambda told: {**mapping(told), "info": {"timing": {"qpu_seconds": SECONDS}}}
    )
    results["not finite"] = _warden(
        lambda told: {
            "counter": dict.fromkeys(mapping(mapping(told)["counter"]), math.inf)
        }
    )

    def texts(method: str, path: str, told: JSON) -> JSON:
        one = mapping(told)
        if "logs" in one:
            return {**one, "logs": ESCAPES}
        return {**one, "status": "ERROR"} if one.get("status") == "DONE" else told

    return Words(
        lambda method, path, told: bool(mapping(told).get("results")),
        results,
        {"texts": texts},
        lambda method, path, _: method == "POST" and path.rstrip("/") == "/jobs",
        "id",
    )


# IQM


def _counts(
    change: Callable[[dict[str, JSON]], JSON],
) -> Callable[[JSON], JSON | bytes]:
    def changed(told: JSON) -> JSON:
        (one,) = map(mapping, listing(told))
        return [{**one, "counts": change(mapping(one["counts"]))}]

    return changed


def _first(value: JSON) -> Callable[[dict[str, JSON]], JSON]:
    return lambda counts: {**counts, next(iter(counts)): value}


def iqm() -> Words:
    """The words of IQM's API."""

    def is_over(told: JSON) -> bool:
        return mapping(told).get("status") == "completed"

    def times(method: str, path: str, told: JSON) -> JSON:
        return (
            {**mapping(told), "runtime_ms": 1000 * SECONDS} if is_over(told) else told
        )

    def texts(method: str, path: str, told: JSON) -> JSON:
        errors: JSON = [{"message": ESCAPES}] * 3
        if is_over(told):
            return {**mapping(told), "status": "failed", "errors": errors}
        return told

    def status(method: str, path: str, told: JSON) -> JSON:
        if path.endswith("/metrics"):
            seen: JSON = [{"dut_field": "metrics.rb.prx.x.fidelity", "value": math.nan}]
            return {"created_timestamp": ESCAPES, "observations": seen}
        if path.endswith("dynamic-quantum-architecture"):
            return {**mapping(told), "calibration_set_id": ESCAPES}
        return told

    return Words(
        lambda method, path, _: path.endswith("/measurement_counts"),
        {
            "kind": lambda _: {"type": "SampleSet"},
            "variables": lambda told: [
                {**mapping(listing(told)[0]), "measurement_keys": ["m_9_0", "m_9_1"]}
            ],
            "more reads": _counts(_first(1000)),
            "fewer reads": _counts(_first(0)),
            "not finite": _counts(_first(math.inf)),
            "not JSON": lambda _: NOT_JSON.encode(),
        },
        {"times": times, "texts": texts, "status": status},
        lambda method, path, _: method == "POST" and "/circuit" in path,
        "id",
    )


# SAPI: numbers are packed


def _packed(kind: str, *values: float) -> str:
    numbers = map(int, values) if kind == "i" else values
    return base64.b64encode(struct.pack(f"<{len(values)}{kind}", *numbers)).decode()


def _unpacked(kind: str, told: JSON) -> list[float]:
    raw = base64.b64decode(str(told))
    return [*struct.unpack(f"<{len(raw) // struct.calcsize(kind)}{kind}", raw)]


def _answer(
    change: Callable[[dict[str, JSON]], dict[str, JSON]],
) -> Callable[[JSON], JSON | bytes]:
    def changed(told: JSON) -> JSON:
        problem = mapping(listing(told)[0] if isinstance(told, list) else told)
        answer = mapping(problem["answer"])
        made: JSON = {**problem, "answer": {**answer, **change(answer)}}
        return [made] if isinstance(told, list) else made

    return changed


def _repacked(key: str, kind: str, first: float) -> Callable[[JSON], JSON | bytes]:
    """Change the first of the numbers of an answer."""
    return _answer(
        lambda told: {key: _packed(kind, first, *_unpacked(kind, told[key])[1:])}
    )


def _other_qubits(told: dict[str, JSON]) -> dict[str, JSON]:
    qubits = _unpacked("i", told["active_variables"])
    return {"active_variables": _packed("i", qubits[-1], *qubits[1:])}


def sapi() -> Words:
    """The words of D-Wave's API."""

    def is_result(method: str, path: str, told: JSON) -> bool:
        return any("answer" in mapping(one) for one in listing(told))

    def texts(method: str, path: str, told: JSON) -> JSON:
        def failed(one: JSON) -> JSON:
            if mapping(one).get("status") != "COMPLETED":
                return one
            rest = {k: v for k, v in mapping(one).items() if k != "answer"}
            return {**rest, "status": "FAILED", "error_message": ESCAPES}

        return [failed(one) for one in told] if isinstance(told, list) else failed(told)

    return Words(
        is_result,
        {
            "kind": lambda told: {**mapping(told), "answer": {"counter": {"01": 100}}},
            "variables": _answer(_other_qubits),
            "more reads": _repacked("num_occurrences", "i", 1000),
            "fewer reads": _repacked("num_occurrences", "i", 0),
            "not finite": _repacked("energies", "d", math.nan),
            "not JSON": lambda _: NOT_JSON.encode(),
            "energies": _repacked("energies", "d", -1000.0),
            "times": _answer(lambda _: {"timing": {"qpu_access_time": 1e6 * SECONDS}}),
        },
        {"texts": texts},
        lambda method, path, _: method == "POST" and "/problems" in path,
        "id",
    )


# Acme


def acme() -> Words:
    """The words of the vendor of ``examples/new-qpu``."""

    def rows(change: Callable[[list[JSON]], JSON]) -> Callable[[JSON], JSON | bytes]:
        return lambda told: change(listing(told))

    def job(**changes: JSON) -> Change:
        def change(method: str, path: str, told: JSON) -> JSON:
            if mapping(told).get("phase") in ("done", "failed"):
                return {**mapping(told), **changes}
            return told

        return change

    def status(method: str, path: str, told: JSON) -> JSON:
        if path != "/machine":
            return told
        calibration: JSON = {
            "id": ESCAPES,
            "time": "9999-01-01",
            "values": {"x": 1e999},
        }
        return {
            **mapping(told),
            "qubits": 10**30,
            "ahead": 10**30,
            "wait": 1e300,
            "setup": 1e300,
            "calibration": calibration,
        }

    micros = 1e6 * SECONDS
    return Words(
        lambda method, path, _: path.endswith("/spins"),
        {
            "kind": lambda _: {"counter": {"01": 100}},
            "variables": rows(lambda told: [[*listing(row), 1] for row in told]),
            "more reads": rows(lambda told: [*told, told[0]]),
            "fewer reads": rows(lambda told: told[:-1]),
            "not finite": rows(lambda told: [[math.nan, 1], *told[1:]]),
            "not JSON": lambda _: NOT_JSON.encode(),
        },
        {
            "times": job(billed=micros, took=micros),
            "texts": job(phase="failed", error=ESCAPES),
            "status": status,
        },
        lambda method, path, _: method == "POST" and path == "/jobs",
        "job",
    )


# any answer, at any place

_ODD: list[JSON] = [
    *(None, True, -1, 0, 1, 0.5, 1e9, 1e300, 2**63, 10**30, math.nan, math.inf),
    *("", "x", "01", ESCAPES, "../..", "2026-01-01", "\ud800", "Completed", "AQAAAA=="),
    *([], {}),
]
_ODD += [[[]], [1, 2], {"id": "x"}, [*"a" * 1000], {"": {"": None}}]
ODD = tuple(_ODD)
RAW = (b"", b"<<<", b'{"x": <<<not json>>>}', b"[" * 10**5, b"null", b'"\xff"')


class Odd:
    """Changes answers, each with a probability, at one place each.

    :param seed: of what it draws
    :param share: of the answers that are changed
    """

    def __init__(self, seed: int, share: float = 0.2) -> None:
        self._draws = random.Random(seed)
        self._share = share

    def __call__(self, method: str, path: str, told: JSON) -> JSON | bytes:
        draws = self._draws
        if draws.random() >= self._share:
            return told
        if draws.random() < 0.1:
            return draws.choice(RAW)
        return self._changed(told)

    def _changed(self, told: JSON) -> JSON:
        draws = self._draws
        if isinstance(told, dict) and told and draws.random() < 0.9:
            key = draws.choice([*told])
            if draws.random() < 0.1:
                return {name: value for name, value in told.items() if name != key}
            return {**told, key: self._changed(told[key])}
        if isinstance(told, list) and told and draws.random() < 0.9:
            place = draws.randrange(len(told))
            return [*told[:place], self._changed(told[place]), *told[place + 1 :]]
        return draws.choice(ODD)
