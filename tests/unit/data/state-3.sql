PRAGMA user_version = 3;
BEGIN TRANSACTION;
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
CREATE TABLE contents (number INTEGER PRIMARY KEY, payload TEXT NOT NULL, result TEXT);
INSERT INTO "contents" VALUES(1,'{"k": "preempted"}','{"info": {"timing": {"queued_seconds": 1.0, "qpu_seconds": 4.0, "seconds": 3.0}}}');
INSERT INTO "contents" VALUES(2,'{"k": "whole"}','{"info": {"timing": {"queued_seconds": 1.0, "qpu_seconds": 8.0, "seconds": 6.0}}}');
INSERT INTO "contents" VALUES(3,'{"k": "failed"}',NULL);
INSERT INTO "contents" VALUES(4,'{"info": {"sapi": {"label": "mine", "params": {"num_reads": 2}, "type": "ising"}}, "k": "real"}',NULL);
INSERT INTO "contents" VALUES(5,'{"k": "of /v1"}',NULL);
INSERT INTO "contents" VALUES(6,'{"k": "waits"}',NULL);
CREATE TABLE door (status TEXT NOT NULL, message TEXT NOT NULL);
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
INSERT INTO "jobs" VALUES(1,'00000000000000000000000000000001','ann','1','test','problem','preempted','{"num_reads": 1}','Completed',2,'pre-empted',1795400002.0,1795400004.0,1795400005.0,1.5,6.0,4.0,'95787a6efabc8a6dd46b0b71e13d2150161c89a6497d22ea5e194b2204b0ec17',NULL,NULL);
INSERT INTO "jobs" VALUES(2,'00000000000000000000000000000002','ann','1','test','problem','whole','{"num_reads": 1}','Completed',1,NULL,1795400006.0,1795400007.0,1795400008.0,1.5,8.0,6.0,'97d4b6843ad27c95c770a4ee93cd9ebb78031e90f58ff3450e5fb5a1197a6757',NULL,NULL);
INSERT INTO "jobs" VALUES(3,'00000000000000000000000000000003','ann','1','test','problem','failed','{"num_reads": 1}','Failed',2,'why',1795400009.0,1795400011.0,1795400012.0,1.5,17.0,13.0,'af70896305bde7e940ae3f9c2abfd3fec9a9268f261566c145fc9cb42b3bf2d7',NULL,NULL);
INSERT INTO "jobs" VALUES(4,'00000000000000000000000000000004','bob','2','test','problem','sapi-0123','{"num_reads": 1}','Queued',1,NULL,1795400013.0,NULL,NULL,1.5,0.0,0.0,'5c3d7c5ec1d9ad2c344dcc879a32b4f53098cb9cbde637691a1eefdb704caddf',NULL,NULL);
INSERT INTO "jobs" VALUES(5,'00000000000000000000000000000005','bob','2','test','problem','sapi-mine','{"num_reads": 1}','Queued',1,NULL,1795400014.0,NULL,NULL,1.5,0.0,0.0,'a864f7f62a01af4da67ec818a1c36adf4694f854d98a2075574eec69aa6de100',NULL,NULL);
INSERT INTO "jobs" VALUES(6,'00000000000000000000000000000006','bob','2','test','problem','waits','{"num_reads": 1}','Queued',2,'pre-empted',1795400015.0,NULL,NULL,1.5,0.5,0.25,'d3ae9ab028936d25bee6547f3e1d8eaaf72d1b7e9425c53667c82c5ed97c9038',NULL,NULL);
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
INSERT INTO "leases" VALUES('1','ann','test','j',NULL,NULL,NULL,NULL,'qc',NULL,NULL,1795400000.0,NULL,NULL,NULL);
INSERT INTO "leases" VALUES('2','bob','test','j',NULL,NULL,NULL,NULL,NULL,NULL,NULL,1795400001.0,NULL,NULL,NULL);
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
CREATE TABLE quality (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    time REAL NOT NULL,
    device TEXT NOT NULL,
    age REAL NOT NULL,
    reads INTEGER NOT NULL,
    hits INTEGER NOT NULL
);
CREATE TABLE windows (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    starts REAL NOT NULL,
    ends REAL,
    message TEXT NOT NULL
);
CREATE INDEX leases_held ON leases (opened) WHERE closed IS NULL;
CREATE INDEX leases_by_user ON leases (user, opened);
CREATE INDEX leases_by_end ON leases (closed) WHERE closed IS NOT NULL;
CREATE INDEX jobs_live ON jobs (number) WHERE state IN ('Queued', 'Running');
CREATE INDEX jobs_by_lease ON jobs (lease, number);
CREATE INDEX jobs_by_user ON jobs (user, number);
CREATE INDEX jobs_by_end ON jobs (ended) WHERE ended IS NOT NULL;
CREATE INDEX past_by_end ON past (ended);
CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit is only added to'); END;
CREATE TRIGGER audit_stays BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'the audit is only added to'); END;
CREATE INDEX jobs_by_user_and_end ON jobs (user, ended) WHERE ended IS NOT NULL;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('jobs',6);
COMMIT;
