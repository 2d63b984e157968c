"""The tables of the state file, and how a file of an older version is upgraded."""

from __future__ import annotations

VERSION = 18
_LEASES_AND_JOBS = """
CREATE TABLE leases (
    id TEXT PRIMARY KEY,
    user TEXT NOT NULL,
    job_class TEXT NOT NULL,
    job TEXT,
    slurm_job_id TEXT,
    partition TEXT,
    expected_seconds REAL,
    pattern TEXT,
    project TEXT,
    tenths INTEGER,
    key TEXT,
    opened REAL NOT NULL,
    expires REAL,
    closed REAL,
    reason TEXT
);
CREATE INDEX leases_held ON leases (opened) WHERE closed IS NULL;
CREATE INDEX leases_by_user ON leases (user, opened);
CREATE INDEX leases_by_end ON leases (closed) WHERE closed IS NOT NULL;
CREATE TABLE jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    user TEXT NOT NULL,
    lease TEXT NOT NULL REFERENCES leases (id),
    job_class TEXT NOT NULL,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    parameters TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'Queued',
    attempt INTEGER NOT NULL DEFAULT 1,
    note TEXT,
    submitted REAL NOT NULL,
    started REAL,
    ended REAL,
    model_seconds REAL NOT NULL,
    qpu_seconds REAL NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0,
    digest TEXT NOT NULL,
    purpose TEXT,
    calibration TEXT,
    UNIQUE (user, key)
);
CREATE INDEX jobs_live ON jobs (number) WHERE state IN ('Queued', 'Running');
CREATE INDEX jobs_by_lease ON jobs (lease, number);
CREATE INDEX jobs_by_user ON jobs (user, number);
CREATE INDEX jobs_by_end ON jobs (ended) WHERE ended IS NOT NULL;
-- in a table of their own: these are large, and the queue is read without them
CREATE TABLE contents (number INTEGER PRIMARY KEY, payload TEXT NOT NULL, result TEXT);
CREATE TABLE door (status TEXT NOT NULL, message TEXT NOT NULL);
"""
# added by version 2
_OPERATION = """
-- jobs that were deleted, added up by the hour in which they ended
CREATE TABLE past (
    ended REAL NOT NULL,
    user TEXT NOT NULL,
    project TEXT,
    lease TEXT NOT NULL,
    slurm_job_id TEXT,
    purpose TEXT,
    state TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    qpu_seconds REAL NOT NULL,
    seconds REAL NOT NULL,
    wait_seconds REAL NOT NULL,
    longest_wait_seconds REAL NOT NULL
);
CREATE INDEX past_by_end ON past (ended);
CREATE TABLE windows (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    starts REAL NOT NULL,
    ends REAL,
    message TEXT NOT NULL
);
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
"""
# added by version 3
_LATEST = """
CREATE INDEX jobs_by_user_and_end ON jobs (user, ended) WHERE ended IS NOT NULL;
"""
# added by version 4
_CHARGES = """
-- the lease under which a job ended that another lease has asked for since
ALTER TABLE jobs ADD COLUMN charged_lease TEXT;
-- of the attempts that were interrupted; these are not in qpu_seconds and seconds
ALTER TABLE jobs ADD COLUMN lost_qpu_seconds REAL NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN lost_seconds REAL NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN cost REAL;
CREATE INDEX jobs_by_charged_lease ON jobs (charged_lease)
    WHERE charged_lease IS NOT NULL;
ALTER TABLE past ADD COLUMN lost_attempts INTEGER NOT NULL DEFAULT 0;
ALTER TABLE past ADD COLUMN lost_qpu_seconds REAL NOT NULL DEFAULT 0;
ALTER TABLE past ADD COLUMN lost_seconds REAL NOT NULL DEFAULT 0;
ALTER TABLE past ADD COLUMN cost REAL;
"""
# added by version 6
_STEADY = """
-- times beside those of the system's clock, which may be set: see the module clock
CREATE TABLE boot (id TEXT NOT NULL, epoch REAL NOT NULL);
ALTER TABLE leases ADD COLUMN opened_steady REAL NOT NULL DEFAULT 0;
ALTER TABLE leases ADD COLUMN closed_steady REAL;
ALTER TABLE jobs ADD COLUMN submitted_steady REAL NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN started_steady REAL;
ALTER TABLE jobs ADD COLUMN ended_steady REAL;
UPDATE leases SET opened_steady = opened, closed_steady = closed;
UPDATE jobs SET submitted_steady = submitted, started_steady = started,
    ended_steady = ended;
CREATE INDEX leases_by_steady_end ON leases (closed_steady)
    WHERE closed_steady IS NOT NULL;
CREATE INDEX jobs_by_steady_end ON jobs (ended_steady) WHERE ended_steady IS NOT NULL;
DROP INDEX jobs_by_user_and_end;
CREATE INDEX jobs_by_user_and_end ON jobs (user, ended_steady)
    WHERE ended_steady IS NOT NULL;
"""
# Version 3 added up all attempts. Of a completed job, the result has the times of the
# last; of a job that failed or was cancelled, they are unknown, and all its attempts stay
# charged, as reports before the upgrade said.
_LAST = (
    "(SELECT json_extract(result, '$.info.timing.{0}') FROM contents "
    "WHERE contents.number = jobs.number AND json_valid(result))"
)
_SPLIT = "".join(
    f"UPDATE jobs SET lost_{name} = {name}, {name} = 0 "
    "WHERE state IN ('Queued', 'Running') AND attempt > 1; "
    f"UPDATE jobs SET lost_{name} = max(0, {name} - {_LAST.format(name)}), "
    f"{name} = {_LAST.format(name)} WHERE state = 'Completed' AND attempt > 1 "
    f"AND {_LAST.format(name)} IS NOT NULL; "
    for name in ("qpu_seconds", "seconds")
)
# added by version 5
_DEATHS = """
-- how often the service died while the job ran
ALTER TABLE jobs ADD COLUMN deaths INTEGER NOT NULL DEFAULT 0;
-- the note of a cancellation, written before the running job is interrupted
ALTER TABLE jobs ADD COLUMN cancelling TEXT;
"""
# added by version 7
_DIALECTS = """
ALTER TABLE jobs ADD COLUMN dialect TEXT NOT NULL DEFAULT 'v1';
-- what the client of a dialect wants to have back with the job, JSON
ALTER TABLE jobs ADD COLUMN metadata TEXT;
"""
# before, it was in the problem; users of /v1 may have chosen any key
_OF_SAPI = """
UPDATE jobs SET dialect = 'sapi', metadata = (SELECT json_extract(payload, '$.info.sapi')
    FROM contents WHERE contents.number = jobs.number)
    WHERE key GLOB 'sapi-*' AND kind = 'problem' AND (SELECT
    json_type(payload, '$.info.sapi.params') FROM contents
    WHERE contents.number = jobs.number) = 'object';
UPDATE jobs SET dialect = 'warden' WHERE key GLOB 'warden-*' AND kind = 'sequence';
"""
# added by version 8
_COMPUTE = """
ALTER TABLE jobs ADD COLUMN compute_seconds REAL NOT NULL DEFAULT 0;
"""
# added by version 9
_OPERATION_TIMES = """
-- when the service was in operation, by the clock of the module clock; a day is kept
CREATE TABLE operation (status TEXT NOT NULL, began REAL NOT NULL, seen REAL NOT NULL);
"""
# added by version 10
_SLURM = "".join(
    f"ALTER TABLE {table} ADD COLUMN slurm_{column} TEXT; "
    for table in ("leases", "past")
    for column in ("cluster", "account")
)
# added by version 11
_STEADY_PAST = """
ALTER TABLE past ADD COLUMN ended_steady REAL;
UPDATE past SET ended_steady = ended;
"""
# added by version 12
_BYTES = """
-- of the payload and the result
ALTER TABLE jobs ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
-- by user, of the jobs that are over
CREATE TABLE kept (user TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TRIGGER job_is_over AFTER UPDATE OF ended ON jobs
    WHEN OLD.ended IS NULL AND NEW.ended IS NOT NULL
    BEGIN INSERT INTO kept VALUES (NEW.user, NEW.bytes) ON CONFLICT (user)
    DO UPDATE SET bytes = bytes + excluded.bytes; END;
CREATE TRIGGER job_is_deleted AFTER DELETE ON jobs WHEN OLD.ended IS NOT NULL
    BEGIN UPDATE kept SET bytes = bytes - OLD.bytes WHERE user = OLD.user; END;
"""
_COUNTED = """
UPDATE jobs SET bytes = (SELECT length(payload) + coalesce(length(result), 0)
    FROM contents WHERE contents.number = jobs.number)
    WHERE number IN (SELECT number FROM contents);
INSERT INTO kept SELECT user, sum(bytes) FROM jobs WHERE ended IS NOT NULL GROUP BY user;
"""
# added by version 14
_DEVICES = """
-- the identity of the device that may have the job, and its id there
ALTER TABLE jobs ADD COLUMN device TEXT;
ALTER TABLE jobs ADD COLUMN device_job TEXT;
ALTER TABLE jobs ADD COLUMN repeatable INTEGER NOT NULL DEFAULT 0;
-- the note of an interruption, written before the job is cancelled on the device
ALTER TABLE jobs ADD COLUMN interrupting TEXT;
-- of a long job: the slices that are over, their shots, and the shots of the next
ALTER TABLE jobs ADD COLUMN slices INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN shots_done INTEGER NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN slice_shots INTEGER;
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
"""
# added by version 15
_WAITING = """
-- whether the lease waits for a vQPU, and its jobs with it
ALTER TABLE leases ADD COLUMN waiting INTEGER NOT NULL DEFAULT 0;
"""
# added by version 16
_BOUNDS = """
ALTER TABLE leases ADD COLUMN max_qpu_seconds REAL;
ALTER TABLE leases ADD COLUMN max_shots INTEGER;
ALTER TABLE leases ADD COLUMN max_qubits INTEGER;
"""
# added by version 17
_TAKEN = """
-- of the jobs of a lease that bounds them: of those that are over, and as modelled of the
-- others; without a sum over all its jobs for each new one
ALTER TABLE leases ADD COLUMN spent_seconds REAL NOT NULL DEFAULT 0;
ALTER TABLE leases ADD COLUMN modelled_seconds REAL NOT NULL DEFAULT 0;
CREATE TRIGGER job_takes_seconds AFTER INSERT ON jobs BEGIN
    UPDATE leases SET modelled_seconds = modelled_seconds + NEW.model_seconds
        WHERE id = NEW.lease AND max_qpu_seconds IS NOT NULL; END;
-- one that is over stays charged to the lease that it ended under
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
# added by version 18
_GIVEN_UP = """
-- jobs that are followed no longer, and may run on at their vendor
CREATE TABLE given_up (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    job INTEGER NOT NULL,
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
_ADDED_UP = """
UPDATE leases SET
    spent_seconds = (SELECT total(qpu_seconds) FROM jobs WHERE ended IS NOT NULL
        AND coalesce(charged_lease, lease) = leases.id)
        + (SELECT total(qpu_seconds) FROM past WHERE past.lease = leases.id),
    modelled_seconds = (SELECT total(model_seconds) FROM jobs WHERE ended IS NULL
        AND jobs.lease = leases.id)
    WHERE closed IS NULL AND max_qpu_seconds IS NOT NULL;
"""
SCHEMA = (
    _LEASES_AND_JOBS
    + _OPERATION
    + _LATEST
    + _CHARGES
    + _DEATHS
    + _STEADY
    + _DIALECTS
    + _COMPUTE
    + _OPERATION_TIMES
    + _SLURM
    + _STEADY_PAST
    + _BYTES
    + _DEVICES
    + _WAITING
    + _BOUNDS
    + _TAKEN
    + _GIVEN_UP
)
# by version, the SQL that upgrades a file to the next version
UPGRADES = {
    1: "ALTER TABLE leases ADD COLUMN project TEXT; "
    "ALTER TABLE leases ADD COLUMN tenths INTEGER; "
    "ALTER TABLE jobs ADD COLUMN purpose TEXT; "
    f"ALTER TABLE jobs ADD COLUMN calibration TEXT; {_OPERATION}",
    2: _LATEST,
    3: _CHARGES + _SPLIT,
    4: _DEATHS,
    5: _STEADY,
    6: _DIALECTS + _OF_SAPI,
    7: _COMPUTE,
    8: _OPERATION_TIMES,
    9: _SLURM,
    10: _STEADY_PAST,
    11: _BYTES + _COUNTED,
    # earlier versions forgot the end of leases that are never held
    12: "UPDATE leases SET closed_steady = closed WHERE closed_steady IS NULL; ",
    13: _DEVICES,
    14: _WAITING,
    15: _BOUNDS,
    16: _TAKEN + _ADDED_UP,
    17: _GIVEN_UP,
}
