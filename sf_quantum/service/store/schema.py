"""The tables of the state file.

Many times come in pairs: ``opened`` is a time of the system's clock, which may be set;
``opened_steady`` is the same time by the steady clock
(:mod:`sf_quantum.service.store.file.clock`), which measures durations and ages.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSION = 2
_LEASES = """
CREATE TABLE leases (
    id TEXT PRIMARY KEY,
    user TEXT NOT NULL,
    job_class TEXT NOT NULL,
    key TEXT,
    -- 1 while the lease waits for a vQPU, and its jobs with it
    waiting INTEGER NOT NULL DEFAULT 0,
    job TEXT,
    project TEXT,
    partition TEXT,
    slurm_job_id TEXT,
    slurm_cluster TEXT,
    slurm_account TEXT,
    pattern TEXT,
    tenths INTEGER,
    latest_start REAL,
    priority INTEGER NOT NULL DEFAULT 0,
    reservation TEXT,
    expected_seconds REAL,
    max_qpu_seconds REAL,
    max_shots INTEGER,
    max_qubits INTEGER,
    -- If max_qpu_seconds is set: the QPU seconds of its jobs that are over, and as modelled
    -- of the others. Triggers keep both, so that no new job sums up all the others.
    spent_seconds REAL NOT NULL DEFAULT 0,
    modelled_seconds REAL NOT NULL DEFAULT 0,
    opened REAL NOT NULL,
    opened_steady REAL NOT NULL,
    expires REAL,
    closed REAL,
    closed_steady REAL,
    reason TEXT
);
CREATE INDEX leases_held ON leases (opened) WHERE closed IS NULL;
CREATE INDEX leases_by_user ON leases (user, opened);
CREATE INDEX leases_by_end ON leases (closed) WHERE closed IS NOT NULL;
CREATE INDEX leases_by_steady_end ON leases (closed_steady)
    WHERE closed_steady IS NOT NULL;
"""
_JOBS = """
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    user TEXT NOT NULL,
    lease TEXT NOT NULL REFERENCES leases (id),
    -- the lease under which the job ended, if another lease has asked for it since
    charged_lease TEXT,
    job_class TEXT NOT NULL,
    kind TEXT NOT NULL,
    dialect TEXT NOT NULL,
    -- JSON that the client of a dialect gets back with the job
    metadata TEXT,
    key TEXT NOT NULL,
    parameters TEXT NOT NULL,
    digest TEXT NOT NULL,
    -- size of the payload and the result
    bytes INTEGER NOT NULL DEFAULT 0,
    purpose TEXT,
    calibration TEXT,
    repeatable INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'Queued',
    attempt INTEGER NOT NULL DEFAULT 1,
    note TEXT,
    -- notes of a cancellation and an interruption, written before the device is told
    cancelling TEXT,
    interrupting TEXT,
    -- how often the service died while the job ran
    deaths INTEGER NOT NULL DEFAULT 0,
    -- identity of the device that may have the job, and the job's id there
    device TEXT,
    device_job TEXT,
    -- Of a long job: the number of slices that are over, their shots, and the shots of the
    -- next slice.
    slices INTEGER NOT NULL DEFAULT 0,
    shots_done INTEGER NOT NULL DEFAULT 0,
    slice_shots INTEGER,
    submitted REAL NOT NULL,
    submitted_steady REAL NOT NULL,
    started REAL,
    started_steady REAL,
    ended REAL,
    ended_steady REAL,
    model_seconds REAL NOT NULL,
    compute_seconds REAL NOT NULL DEFAULT 0,
    -- use by the last attempt, and by those that were interrupted before it
    qpu_seconds REAL NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0,
    lost_qpu_seconds REAL NOT NULL DEFAULT 0,
    lost_seconds REAL NOT NULL DEFAULT 0,
    cost REAL,
    UNIQUE (user, key)
);
CREATE INDEX jobs_live ON jobs (number) WHERE state IN ('Queued', 'Running');
CREATE INDEX jobs_by_lease ON jobs (lease, number);
CREATE INDEX jobs_by_charged_lease ON jobs (charged_lease)
    WHERE charged_lease IS NOT NULL;
CREATE INDEX jobs_by_user ON jobs (user, number);
CREATE INDEX jobs_by_end ON jobs (ended) WHERE ended IS NOT NULL;
CREATE INDEX jobs_by_steady_end ON jobs (ended_steady) WHERE ended_steady IS NOT NULL;
CREATE INDEX jobs_by_user_and_end ON jobs (user, ended_steady)
    WHERE ended_steady IS NOT NULL;
-- payloads and results have a table of their own: the queue is read without them
CREATE TABLE contents (number INTEGER PRIMARY KEY, payload TEXT NOT NULL, result TEXT);
CREATE TABLE slices (
    number INTEGER NOT NULL,
    slice INTEGER NOT NULL,
    shots INTEGER NOT NULL,
    result TEXT NOT NULL,
    info TEXT NOT NULL,
    PRIMARY KEY (number, slice)
);
CREATE TRIGGER slices_are_merged AFTER UPDATE OF ended ON jobs
    WHEN OLD.ended IS NULL AND NEW.ended IS NOT NULL
    BEGIN DELETE FROM slices WHERE number = NEW.number; END;
CREATE TRIGGER job_takes_seconds AFTER INSERT ON jobs BEGIN
    UPDATE leases SET modelled_seconds = modelled_seconds + NEW.model_seconds
        WHERE id = NEW.lease AND max_qpu_seconds IS NOT NULL; END;
-- a job that is over stays charged to the lease that it ended under
CREATE TRIGGER job_moves_or_ends AFTER UPDATE OF lease, ended ON jobs
    WHEN OLD.ended IS NULL AND (NEW.ended IS NOT NULL OR OLD.lease != NEW.lease) BEGIN
    UPDATE leases SET modelled_seconds = modelled_seconds - OLD.model_seconds
        WHERE id = OLD.lease AND max_qpu_seconds IS NOT NULL;
    UPDATE leases SET modelled_seconds = modelled_seconds + NEW.model_seconds
        WHERE id = NEW.lease AND NEW.ended IS NULL AND max_qpu_seconds IS NOT NULL;
    UPDATE leases SET spent_seconds = spent_seconds + NEW.qpu_seconds
        WHERE id = NEW.lease AND NEW.ended IS NOT NULL AND max_qpu_seconds IS NOT NULL;
    END;
"""
_KEPT = """
-- by user, the bytes of the jobs that are over
CREATE TABLE kept (user TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TRIGGER job_is_over AFTER UPDATE OF ended ON jobs
    WHEN OLD.ended IS NULL AND NEW.ended IS NOT NULL
    BEGIN INSERT INTO kept (user, bytes) VALUES (NEW.user, NEW.bytes)
    ON CONFLICT (user) DO UPDATE SET bytes = bytes + excluded.bytes; END;
CREATE TRIGGER job_is_deleted AFTER DELETE ON jobs WHEN OLD.ended IS NOT NULL
    BEGIN UPDATE kept SET bytes = bytes - OLD.bytes WHERE user = OLD.user; END;
-- jobs that were deleted, added up by the hour in which they ended
CREATE TABLE past (
    ended REAL NOT NULL,
    ended_steady REAL NOT NULL,
    user TEXT NOT NULL,
    project TEXT,
    lease TEXT NOT NULL,
    slurm_job_id TEXT,
    slurm_cluster TEXT,
    slurm_account TEXT,
    purpose TEXT,
    state TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    qpu_seconds REAL NOT NULL,
    seconds REAL NOT NULL,
    wait_seconds REAL NOT NULL,
    longest_wait_seconds REAL NOT NULL,
    lost_attempts INTEGER NOT NULL,
    lost_qpu_seconds REAL NOT NULL,
    lost_seconds REAL NOT NULL,
    cost REAL,
    -- 0 of what release 0.1.0 has deleted
    shots INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX past_by_end ON past (ended);
CREATE INDEX past_by_lease ON past (lease);
"""
_OPERATION = """
-- the status that an operator has set
CREATE TABLE availability (status TEXT NOT NULL, message TEXT NOT NULL);
CREATE TABLE windows (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    starts REAL NOT NULL,
    ends REAL,
    message TEXT NOT NULL
);
-- when the service was in operation, by the steady clock; a day is kept
CREATE TABLE operation (status TEXT NOT NULL, began REAL NOT NULL, seen REAL NOT NULL);
-- the steady clock's epoch in the present boot
CREATE TABLE boot (id TEXT NOT NULL, epoch REAL NOT NULL);
-- the quality jobs that ran, for the usual quality; few, and never deleted
CREATE TABLE quality (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    time REAL NOT NULL,
    device TEXT NOT NULL,
    age REAL NOT NULL,
    reads INTEGER NOT NULL,
    hits INTEGER NOT NULL
);
CREATE TABLE audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    time REAL NOT NULL,
    user TEXT NOT NULL,
    action TEXT NOT NULL,
    parameters TEXT NOT NULL,
    old TEXT NOT NULL,
    new TEXT NOT NULL,
    outcome TEXT NOT NULL
);
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit is only added to'); END;
CREATE TRIGGER audit_stays BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit is only added to'); END;
-- jobs that are followed no longer, and may run on at their vendor
CREATE TABLE given_up (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job INTEGER NOT NULL,
    -- NULL of what release 0.1.0 has given up: the last one
    attempt INTEGER,
    device TEXT NOT NULL,
    device_job TEXT,
    tag TEXT NOT NULL UNIQUE,
    why TEXT NOT NULL,
    since REAL NOT NULL,
    booked REAL NOT NULL,
    price REAL,
    -- what became of it, if that is known
    ended TEXT
);
CREATE INDEX given_up_open ON given_up (number) WHERE ended IS NULL;
"""
SCHEMA = _LEASES + _JOBS + _KEPT + _OPERATION
#: SQL that upgrades a file to the next version, by the file's version, for all versions
#: since the first release
UPGRADES: Mapping[int, str] = {
    # release 0.1.0
    1: """
    ALTER TABLE leases ADD COLUMN latest_start REAL;
    ALTER TABLE leases ADD COLUMN priority INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE leases ADD COLUMN reservation TEXT;
    ALTER TABLE past ADD COLUMN shots INTEGER NOT NULL DEFAULT 0;
    CREATE INDEX past_by_lease ON past (lease);
    ALTER TABLE given_up ADD COLUMN attempt INTEGER;
    """,
}
