-- What the first version of the service made of an empty file.
CREATE TABLE leases (
    id TEXT PRIMARY KEY,
    user TEXT NOT NULL,
    job_class TEXT NOT NULL,
    job TEXT,
    slurm_job_id TEXT,
    partition TEXT,
    expected_seconds REAL,
    pattern TEXT,
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
    UNIQUE (user, key)
);
CREATE INDEX jobs_live ON jobs (number) WHERE state IN ('Queued', 'Running');
CREATE INDEX jobs_by_lease ON jobs (lease, number);
CREATE INDEX jobs_by_user ON jobs (user, number);
CREATE INDEX jobs_by_end ON jobs (ended) WHERE ended IS NOT NULL;
-- apart from their jobs: these are large, and the queue is read without them
CREATE TABLE contents (number INTEGER PRIMARY KEY, payload TEXT NOT NULL, result TEXT);
CREATE TABLE door (status TEXT NOT NULL, message TEXT NOT NULL);
PRAGMA user_version = 1;
