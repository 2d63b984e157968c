"""The machine of Acme, the vendor of ``examples/new-qpu``: its queue, and what it answers.

``tests/support/vendor.py`` serves it.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import threading
import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from sf_quantum.files import JSON

KEY = "the key of a user"
MICROSECONDS = 1e6
#: what befalls a request; after "after" and "amid", it has taken effect
Fault: TypeAlias = Literal[
    "busy",  # 429
    "error",  # 500
    "error after",
    "cut",  # the connection, without an answer
    "cut after",
    "cut amid",  # the answer
    "late",  # takes effect and is answered when it is let through
    "late answer",  # has taken effect, and is answered when it is let through
    "large",  # a stream of ``size`` bytes
    "answer",  # ``body`` in place of the answer
]
#: what becomes of a job
Fate: TypeAlias = Literal["", "fails", "never ends"]
Answer: TypeAlias = tuple[int, JSON]
LIVE = "phase IN ('waiting', 'running')"
SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (content TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS bookings (
    id TEXT PRIMARY KEY, open INTEGER NOT NULL, since REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tag TEXT NOT NULL,
    booking TEXT NOT NULL,
    problem TEXT NOT NULL,
    fate TEXT NOT NULL,
    phase TEXT NOT NULL,
    micros REAL NOT NULL,
    submitted REAL NOT NULL,
    ready REAL NOT NULL,
    ran INTEGER NOT NULL DEFAULT 0,
    started REAL,
    took REAL NOT NULL DEFAULT 0,
    billed REAL NOT NULL DEFAULT 0,
    error TEXT NOT NULL DEFAULT '',
    calibration TEXT,
    spins TEXT
);
"""


@dataclass(frozen=True)
class Settings:
    """How the machine is; :meth:`Control.set` changes it, also for the next process.

    :param state: ``up``; otherwise it takes no jobs and no bookings, and starts none
    :param key: of the user; others are refused
    :param dead: qubits out of service
    :param setup: microseconds of a job, beside ``shot`` for each shot
    :param most_waiting: jobs; others are refused with 429, and a second's pause
    :param held: no job starts or ends
    :param queue_seconds: waits of the next jobs for other users' jobs, in turn; jobs of a
        booking of which a job has begun do not wait
    :param latency_seconds: of each request
    :param skew_seconds: of its clock
    :param shares: of requests that a fault befalls
    """

    state: str = "up"
    reason: str = ""
    key: str = KEY
    qubits: int = 64
    dead: list[int] = field(default_factory=list)
    shots: int = 10_000
    setup: float = 1000.0
    shot: float = 10.0
    most_waiting: int = 1000
    held: bool = False
    queue_seconds: list[float] = field(default_factory=list)
    latency_seconds: float = 0.0
    skew_seconds: float = 0.0
    shares: dict[Fault, float] = field(default_factory=dict)
    calibration: str = "c1"
    calibrated: float = 0.0
    seed: int = 0


@dataclass
class Trouble:
    """A fault of the next requests."""

    kind: Fault
    method: str = ""
    path: str = ""
    times: int = 1
    retry_after: float | None = None
    as_date: bool = False
    size: int = 0
    body: str = ""

    def befalls(self, method: str, path: str) -> bool:
        return path.startswith(self.path) and self.method in ("", method)


@dataclass(frozen=True)
class Count:
    """What the vendor has done under one tag.

    :param ran: how often its jobs were started
    :param billed: how many of them cost something, ``micros`` together
    """

    accepted: int
    ran: int
    billed: int
    micros: float
    phases: list[str]


class Submission(BaseModel):
    """The body of ``POST /jobs``."""

    tag: str = Field(max_length=60)
    booking: str
    h: list[float]
    J: list[tuple[int, int, float]]
    shots: int = Field(ge=1)
    seed: int | None


class Refused(Exception):
    """A refusal of a request."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Machine:
    """The machine and its queue; safe in threads."""

    def __init__(self, folder: Path) -> None:
        self._database = sqlite3.connect(
            folder / "acme.sqlite", check_same_thread=False, isolation_level=None
        )
        self._database.row_factory = sqlite3.Row
        # it is the process that is killed, not the computer
        self._database.executescript(f"PRAGMA synchronous=OFF; {SCHEMA}")
        # guards all that follows, and the database
        self._changed = threading.Condition()
        known = self._rows("SELECT content FROM settings")
        self.settings = (
            TypeAdapter(Settings).validate_json(known[0]["content"])
            if known
            else Settings(calibrated=time.time())
        )
        self._draws = random.Random(self.settings.seed)
        self._troubles: list[Trouble] = []
        self._fates: list[Fate] = []
        self._gate = threading.Event()
        self._late = self._requests = 0
        self._closed = False
        self._worker = threading.Thread(target=self._work)
        self._worker.start()

    def stop(self) -> None:
        """Begin nothing more, and hold no request."""
        with self._changed:
            self._closed = True
            self._gate.set()
            self._changed.notify_all()

    def close(self) -> None:
        """Close the database, which no request may use any more."""
        self._worker.join()
        self._database.close()

    def _rows(self, query: str, *values: str | float | None) -> list[sqlite3.Row]:
        return self._database.execute(query, values).fetchall()

    # commands

    def command(self, name: str, arguments: Mapping[str, JSON]) -> JSON:
        """Do what :class:`Control` asks."""
        with self._changed:
            self._changed.notify_all()
            match name:
                case "set":
                    changed = {**asdict(self.settings), **arguments}
                    self.settings = TypeAdapter(Settings).validate_python(changed)
                    self._rows("DELETE FROM settings")
                    self._rows("INSERT INTO settings VALUES (?)", json.dumps(changed))
                case "fault":
                    trouble = TypeAdapter(Trouble).validate_python(arguments)
                    self._troubles.append(trouble)
                case "let_through":
                    self._gate.set()
                    self._gate = threading.Event()
                case "next_jobs":
                    fates = TypeAdapter(list[Fate]).validate_python(arguments["fates"])
                    self._fates += fates
                case "vanish":
                    where, tag = "WHERE tag = ?", str(arguments["tag"])
                    self._rows(f"UPDATE jobs SET phase = 'vanished' {where}", tag)
                case "end_bookings":
                    self._rows("UPDATE bookings SET open = 0")
                case "seen":
                    counts = {"late": self._late, "requests": self._requests}
                    return {**counts, "booked": int(bool(self._open()))}
                case "counts":
                    return self._counts()
        return None

    def _counts(self) -> dict[str, JSON]:
        return {
            row["tag"]: {**row, "phases": row["phases"].split()}
            for row in self._rows(
                "SELECT tag, COUNT(*) AS accepted, SUM(ran) AS ran,"
                " SUM(billed > 0) AS billed, SUM(billed) AS micros,"
                " GROUP_CONCAT(phase, ' ') AS phases FROM jobs GROUP BY tag"
            )
        }

    # requests

    def trouble(self, method: str, path: str) -> Trouble | None:
        """Count a request, and draw the fault that befalls it."""
        with self._changed:
            self._requests += 1
            for trouble in self._troubles:
                if trouble.times > 0 and trouble.befalls(method, path):
                    trouble.times -= 1
                    return trouble
            draw = self._draws.random()
            for kind, share in self.settings.shares.items():
                if (draw := draw - share) < 0:
                    return Trouble(kind)
        return None

    def wait(self) -> None:
        """Hold a request until it is let through."""
        with self._changed:
            gate = self._gate
            self._late += 1
        gate.wait()

    def pause(self, seconds: float) -> None:
        """Wait for a while, unless the machine is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)

    def answer(
        self, key: str | None, method: str, path: list[str], query: str, body: bytes
    ) -> Answer:
        """Answer a request, as Acme does."""
        try:
            with self._changed:
                if key != self.settings.key:
                    raise Refused(401, "this key is not known")
                self._changed.notify_all()
                match path:
                    case ["machine"]:
                        return 200, self._machine()
                    case ["bookings", booking]:
                        return self._booking(method, booking)
                    case ["jobs"] if method == "POST":
                        return 201, self._submitted(body)
                    case ["jobs"]:
                        return 200, self._found(query)
                    case ["jobs", job, *what]:
                        return self._job(method, job, what)
            raise Refused(404, "no such path")
        except ValidationError as error:
            return 400, {"error": str(error)}
        except Refused as error:
            return error.status, {"error": str(error)}

    def _machine(self) -> JSON:
        now = self.settings
        return {
            "state": now.state,
            "reason": now.reason,
            "qubits": now.qubits - len(now.dead),
            "dead": [*now.dead],
            "shots": now.shots,
            "ahead": len(self._rows(f"SELECT id FROM jobs WHERE {LIVE}")),
            "wait": max(self._wait(), self._next_queue() * MICROSECONDS),
            "setup": now.setup,
            "shot": now.shot,
            "calibration": self._calibration(),
        }

    def _calibration(self) -> JSON:
        now = self.settings
        at = datetime.fromtimestamp(now.calibrated + now.skew_seconds, UTC)
        values: JSON = {"readout_error": 0.01}
        return {"id": now.calibration, "time": at.isoformat(), "values": values}

    def _next_queue(self, booking: str = "") -> float:
        # the seconds that a job which is submitted now waits for those of others
        begun = (
            "SELECT jobs.id FROM jobs JOIN bookings ON booking = bookings.id"
            " WHERE booking = ? AND started >= since LIMIT 1"
        )
        if not (queue := self.settings.queue_seconds) or (
            booking and self._rows(begun, booking)
        ):
            return 0.0
        ((queued,),) = self._rows("SELECT COUNT(*) FROM jobs WHERE ready > submitted")
        return queue[int(queued) % len(queue)]

    def _wait(self, before: int = sys.maxsize) -> float:
        live = self._rows(f"SELECT * FROM jobs WHERE {LIVE} AND id < ?", before)
        left = [max(0.0, row["micros"] - _elapsed(row)) for row in live]
        return float(sum(left))

    def _open(self) -> str:
        rows = self._rows("SELECT id FROM bookings WHERE open")
        return str(rows[0]["id"]) if rows else ""

    def _booking(self, method: str, booking: str) -> Answer:
        booked = self._open()
        match method:
            case "GET" if booked != booking:
                raise Refused(410, "the booking has ended")
            case "PUT":
                self._check_up()
                if booked not in ("", booking):
                    raise Refused(423, "it is booked")
                if booked != booking:
                    insert = "INSERT OR REPLACE INTO bookings VALUES (?, 1, ?)"
                    self._rows(insert, booking, time.time())
            case "DELETE":
                self._rows("UPDATE bookings SET open = 0 WHERE id = ?", booking)
                live = f"SELECT id FROM jobs WHERE booking = ? AND {LIVE}"
                for row in self._rows(live, booking):
                    self._stop(row["id"])
        return 200, {}

    def _check_up(self) -> None:
        if self.settings.state != "up":
            raise Refused(503, self.settings.reason or f"it is {self.settings.state}")

    def _submitted(self, body: bytes) -> JSON:
        told, now = Submission.model_validate_json(body), self.settings
        self._check_up()
        booked, waiting = self._open(), "SELECT id FROM jobs WHERE phase = 'waiting'"
        if told.booking and told.booking != booked:
            raise Refused(410, "the booking has ended")
        if told.booking != booked:
            raise Refused(423, "it is booked")
        if len(self._rows(waiting)) >= now.most_waiting:
            raise Refused(429, "too many jobs wait")
        if len(told.h) > (working := now.qubits - len(now.dead)):
            raise Refused(422, f"{len(told.h)} spins on {working} qubits")
        if told.shots > now.shots:
            raise Refused(422, f"{told.shots} shots, at most {now.shots}")
        at = time.time()
        number = self._database.execute(
            "INSERT INTO jobs (tag, booking, problem, fate, phase, micros, submitted, ready)"
            " VALUES (?, ?, ?, ?, 'waiting', ?, ?, ?)",
            (
                *(told.tag, told.booking, told.model_dump_json()),
                *(self._fates.pop(0) if self._fates else "",),
                *(now.setup + told.shots * now.shot, at),
                at + self._next_queue(told.booking),
            ),
        ).lastrowid
        return self._told(self._row(number))

    def _row(self, number: int | None) -> sqlite3.Row:
        known = "SELECT * FROM jobs WHERE id = ? AND phase != 'vanished'"
        if not (rows := self._rows(known, number)):
            raise Refused(404, "no such job")
        return rows[0]

    def _found(self, query: str) -> JSON:
        ((key, value),) = parse_qsl(query)
        column = {"tag": "tag", "booking": "booking"}[key]
        rows = self._rows(f"SELECT * FROM jobs WHERE {column} = ? ORDER BY id", value)
        return [self._told(row) for row in rows if row["phase"] != "vanished"]

    def _job(self, method: str, job: str, what: list[str]) -> Answer:
        row = self._row(int(job) if job.isdecimal() else None)
        if method == "DELETE":
            self._stop(row["id"])
            return 200, {}
        if not what:
            return 200, self._told(row)
        if row["spins"] is None:
            raise Refused(409, f"the job is {row['phase']}")
        return 200, json.loads(row["spins"])

    def _told(self, row: sqlite3.Row) -> dict[str, JSON]:
        before = f"SELECT id FROM jobs WHERE {LIVE} AND id < ?"
        waits, running = row["phase"] == "waiting", row["phase"] == "running"
        return {
            "job": str(row["id"]),
            "phase": row["phase"],
            "ahead": len(self._rows(before, row["id"])) if waits else None,
            "wait": max(self._wait(row["id"]), _queued(row)) if waits else None,
            "took": _elapsed(row) if running else row["took"],
            "billed": row["billed"],
            "error": row["error"],
            "calibration": json.loads(row["calibration"] or "null"),
        }

    # jobs

    def _stop(self, number: int) -> None:
        row = self._row(number)
        took = min(_elapsed(row), row["micros"])
        # the part that ran is billed
        self._rows(
            f"UPDATE jobs SET phase = 'stopped', took = ?, billed = ? WHERE id = ? AND {LIVE}",
            *(took, took, number),
        )

    def _work(self) -> None:
        """Run the jobs, one at a time, also those that an earlier process has begun."""
        with self._changed:
            while not self._closed:
                seconds = self._step()
                if seconds != 0:
                    self._changed.wait(seconds)

    def _step(self) -> float | None:
        # returns for how long there is nothing to do
        order = f"SELECT * FROM jobs WHERE {LIVE} ORDER BY phase, ready, id"
        if self.settings.held or not (rows := self._rows(order)):
            return None
        row = rows[0]
        if row["phase"] == "waiting":
            if self.settings.state != "up":
                return None
            if (queued := _queued(row)) > 0:
                return queued / MICROSECONDS
            self._rows(
                "UPDATE jobs SET phase = 'running', ran = ran + 1, started = ?,"
                " calibration = ? WHERE id = ?",
                *(time.time(), json.dumps(self._calibration()), row["id"]),
            )
            return 0.0
        if row["fate"] == "never ends":
            return None
        left = (row["micros"] - _elapsed(row)) / MICROSECONDS
        if left > 0:
            return float(left)
        self._end(row)
        return 0.0

    def _end(self, row: sqlite3.Row) -> None:
        phase, error, spins = "done", "", None
        if row["fate"] == "fails":
            phase, error = "failed", "the readout lost its lock"
        else:
            told = Submission.model_validate_json(row["problem"])
            self._changed.release()
            try:
                spins = json.dumps(_sampled(told, self.settings.seed))
            finally:
                self._changed.acquire()
        # unless it has been stopped, or has vanished
        self._rows(
            "UPDATE jobs SET phase = ?, error = ?, spins = ?, took = ?, billed = micros"
            " WHERE id = ? AND phase = 'running'",
            *(phase, error, spins, row["micros"], row["id"]),
        )


def _elapsed(row: sqlite3.Row) -> float:
    """Microseconds since a job was started."""
    started = row["started"]
    return 0.0 if started is None else max(0.0, time.time() - started) * MICROSECONDS


def _queued(row: sqlite3.Row) -> float:
    """Microseconds for which a job still waits for those of other users."""
    return max(0.0, float(row["ready"]) - time.time()) * MICROSECONDS


def _sampled(job: Submission, seed: int) -> list[list[int]]:
    # they take a second to import, and not every process samples
    from dimod import BinaryQuadraticModel
    from dwave.samplers import SimulatedAnnealingSampler

    bqm = BinaryQuadraticModel("SPIN")
    for number, bias in enumerate(job.h):
        bqm.add_linear(number, bias)
    for one, other, bias in job.J:
        bqm.add_quadratic(one, other, bias)
    own = zlib.crc32(job.tag.encode()) ^ seed if job.seed is None else job.seed
    flat = not any(job.h) and not any(bias for *_, bias in job.J)
    found = SimulatedAnnealingSampler().sample(
        bqm,
        num_reads=job.shots,
        seed=own % 2**31,
        # it has none of its own where all biases are zero
        beta_range=(0.1, 1.0) if flat else None,
    )
    order = [found.variables.index(number) for number in range(len(job.h))]
    rows: list[list[int]] = found.record.sample[:, order].tolist()
    return rows
