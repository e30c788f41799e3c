BEGIN TRANSACTION;
CREATE TABLE headrace_audit (
    number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at_ms BIGINT NOT NULL,
    done_by TEXT NOT NULL,
    tenant TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    details TEXT NOT NULL,
    jobs BIGINT
);
CREATE TABLE headrace_counter (
    event TEXT NOT NULL,
    cause TEXT NOT NULL,
    queue TEXT NOT NULL,
    model TEXT NOT NULL,
    tenant TEXT NOT NULL,
    bucket INTEGER NOT NULL,
    shard INTEGER NOT NULL,
    jobs BIGINT NOT NULL,
    total_ms BIGINT NOT NULL,
    PRIMARY KEY (event, cause, queue, model, tenant, bucket, shard)
);
INSERT INTO "headrace_counter" VALUES('submitted','','default','','',0,0,7,0);
INSERT INTO "headrace_counter" VALUES('submitted','','default','m','',0,0,1,0);
INSERT INTO "headrace_counter" VALUES('started','','default','','',0,0,7,0);
INSERT INTO "headrace_counter" VALUES('started','','default','m','',0,0,1,0);
INSERT INTO "headrace_counter" VALUES('completed','','default','m','',0,0,1,0);
INSERT INTO "headrace_counter" VALUES('failed','model','default','','',0,0,1,0);
INSERT INTO "headrace_counter" VALUES('finished','','default','','',0,0,4,0);
INSERT INTO "headrace_counter" VALUES('finished','','default','m','',0,0,1,0);
INSERT INTO "headrace_counter" VALUES('retried','model','default','','',0,0,1,0);
INSERT INTO "headrace_counter" VALUES('publish_failed','model','default','','',0,0,1,0);
INSERT INTO "headrace_counter" VALUES('completed','','default','','',0,0,1,0);
INSERT INTO "headrace_counter" VALUES('retried','released','default','','',0,0,1,0);
CREATE TABLE headrace_decision (
    number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at_ms BIGINT NOT NULL,
    pool TEXT NOT NULL,
    controller TEXT NOT NULL,
    workers INTEGER NOT NULL,
    wanted INTEGER NOT NULL,
    reason TEXT NOT NULL,
    observed TEXT NOT NULL
);
CREATE TABLE headrace_dependency (
    job_id TEXT NOT NULL,
    after_id TEXT NOT NULL,
    PRIMARY KEY (job_id, after_id)
);
CREATE TABLE headrace_endpoint (
    name TEXT NOT NULL,
    version INTEGER NOT NULL,
    settings TEXT NOT NULL,
    created_at_ms BIGINT NOT NULL,
    created_by TEXT NOT NULL,
    deleted BOOLEAN NOT NULL DEFAULT FALSE,
    PRIMARY KEY (name, version)
);
CREATE TABLE headrace_history (
    number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    event TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    lease BIGINT NOT NULL,
    worker TEXT NOT NULL,
    cause TEXT NOT NULL,
    message TEXT NOT NULL,
    done_by TEXT NOT NULL
, started_at_ms BIGINT);
INSERT INTO "headrace_history" VALUES(1,'failed',1800000000000,'attempt_failed',1,1,'w','model','the model raised on it','',1800000000000);
INSERT INTO "headrace_history" VALUES(2,'pending',1800000000000,'attempt_failed',1,1,'w','model','the model raised on it','',1800000000000);
INSERT INTO "headrace_history" VALUES(3,'pending',1800000000000,'released',2,2,'w','','','',1800000000000);
CREATE TABLE headrace_job (
    id TEXT NOT NULL PRIMARY KEY,
    state TEXT NOT NULL,
    queue TEXT NOT NULL,
    model TEXT NOT NULL,
    kind TEXT NOT NULL,
    tenant TEXT NOT NULL,
    priority INTEGER NOT NULL,
    attempts_max INTEGER NOT NULL,
    body_digest TEXT NOT NULL,
    correlation_id TEXT NOT NULL,
    idempotency_key TEXT,
    spec TEXT NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    lease BIGINT NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    worker TEXT NOT NULL DEFAULT '',
    created_at_ms BIGINT NOT NULL,
    due_at_ms BIGINT NOT NULL,
    asleep BOOLEAN NOT NULL,
    started_at_ms BIGINT,
    ended_at_ms BIGINT,
    expires_at_ms BIGINT,
    deadline_at_ms BIGINT,
    lease_until_ms BIGINT,
    cancel_requested BOOLEAN NOT NULL DEFAULT FALSE,
    progress TEXT,
    cursor TEXT,
    result TEXT,
    published_uri TEXT NOT NULL DEFAULT '',
    failure TEXT
, region TEXT NOT NULL DEFAULT '', worker_region TEXT NOT NULL DEFAULT '', publish_at_ms BIGINT, publish_tries INTEGER NOT NULL DEFAULT 0, lane TEXT NOT NULL DEFAULT '', rank_ms BIGINT NOT NULL DEFAULT 0, keep_ms BIGINT, fingerprint TEXT NOT NULL DEFAULT '', has_dependents BOOLEAN NOT NULL DEFAULT FALSE);
INSERT INTO "headrace_job" VALUES('completed','completed','default','m','infer','',0,3,'','',NULL,'{"notify":[{"webhook":"https://example.com"}],"tags":{"team":"blue"}}',1,1,0,'w',1800000000000,1800000000000,0,1800000000000,1800000000000,NULL,NULL,NULL,0,NULL,NULL,'{"uri":"memory://out","size_bytes":3,"content_type":"text/csv"}','',NULL,'','',NULL,0,'|||m|',1800000000000,NULL,'',0);
INSERT INTO "headrace_job" VALUES('failed','failed','default','','infer','',1,3,'d','','k','{"options":{"rows":3}}',1,1,0,'w',1800000000000,1800000000000,0,1800000000000,1800000000000,NULL,NULL,NULL,0,NULL,NULL,NULL,'','{"cause":"model","message":"the model raised on it","error":"ValueError","uri":"memory://error","times":1}','','',NULL,0,'||||',1800003600000,NULL,'e949155a094beecc',0);
INSERT INTO "headrace_job" VALUES('pending','pending','default','','infer','',2,3,'','',NULL,'{}',1,2,0,'w',1800000000000,1800000000000,0,1800000000000,NULL,NULL,NULL,NULL,0,NULL,'{"chunk":7}',NULL,'','{"cause":"model","message":"the model raised on it","error":"ValueError","uri":"memory://error","times":1}','','',NULL,0,'||||',1800007200000,NULL,'',0);
INSERT INTO "headrace_job" VALUES('running','running','default','','infer','',3,3,'','',NULL,'{}',1,1,0,'w',1800000000000,1800000000000,0,1800000000000,NULL,NULL,NULL,1800000060000,0,'{"done":3,"total":9,"unit":"records","note":"","bytes_across_regions":0}',NULL,NULL,'',NULL,'','',NULL,0,'||||',1800010800000,NULL,'',0);
INSERT INTO "headrace_job" VALUES('publishing','publishing','default','','infer','',4,3,'','',NULL,'{"key":"K","output_uri":"s3://box/out"}',1,1,0,'w',1800000000000,1800000000000,0,1800000000000,NULL,NULL,NULL,NULL,0,NULL,NULL,'{"uri":"memory://out","size_bytes":null,"content_type":""}','',NULL,'','',1800000010000,0,'||||',1800014400000,NULL,'',0);
INSERT INTO "headrace_job" VALUES('unpublished','publish_failed','default','','infer','',5,3,'','',NULL,'{"key":"L","output_uri":"s3://box/out"}',1,1,0,'w',1800000000000,1800000000000,0,1800000000000,1800000000000,NULL,NULL,NULL,0,NULL,NULL,'{"uri":"memory://out","size_bytes":null,"content_type":""}','','{"cause":"model","message":"the model raised on it","error":"ValueError","uri":"memory://error","times":1}','','',NULL,0,'||||',1800018000000,NULL,'e949155a094beecc',0);
INSERT INTO "headrace_job" VALUES('published','completed','default','','infer','',6,3,'','',NULL,'{"key":"M","output_uri":"s3://box/out"}',1,1,0,'w',1800000000000,1800000000000,0,1800000000000,1800000000000,NULL,NULL,NULL,0,NULL,NULL,'{"uri":"memory://out","size_bytes":null,"content_type":"","digest":"sha256:00"}','s3://box/out/M.out',NULL,'','',NULL,0,'||||',1800021600000,NULL,'',0);
INSERT INTO "headrace_job" VALUES('later','pending','default','','infer','',5,3,'','',NULL,'{"deadline_s":3600.0,"delay_ms":60000,"time_to_live_s":1800.0}',0,0,0,'',1800000000000,1800000060000,1,NULL,NULL,1800001800000,1800003600000,NULL,0,NULL,NULL,NULL,'',NULL,'eu-east','',NULL,0,'||||eu-east',1800018060000,NULL,'',0);
CREATE TABLE headrace_limit (
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    running_max BIGINT,
    weight DOUBLE PRECISION NOT NULL DEFAULT 1,
    PRIMARY KEY (kind, name)
);
CREATE TABLE headrace_notification (
    id TEXT NOT NULL PRIMARY KEY,
    job_id TEXT NOT NULL,
    receiver_id TEXT NOT NULL,
    event_id TEXT NOT NULL,
    type TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    data TEXT NOT NULL,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    fence BIGINT NOT NULL DEFAULT 0,
    due_at_ms BIGINT NOT NULL,
    lease_until_ms BIGINT NOT NULL DEFAULT 0,
    ended_at_ms BIGINT,
    why TEXT NOT NULL DEFAULT ''
);
INSERT INTO "headrace_notification" VALUES('01a3185c-5000-7891-8dd2-e09306955d0a','completed','webhook-d2ac754524e5b849a1bb4d65e2827103','evt_01a3185c-5000-7b44-b992-9da8e32f8b9a','job.completed',1800000000000,'{"state":"completed","queue":"default","kind":"infer","model":"m","attempt":1,"tags":{"team":"blue"},"submitted_at_ms":1800000000000,"output_content_type":"text/csv","output_bytes":3}','waiting',0,0,1800000000000,0,NULL,'');
CREATE TABLE headrace_output (
    location TEXT NOT NULL PRIMARY KEY,
    owner_key TEXT NOT NULL,
    owner_tenant TEXT NOT NULL,
    owner_id TEXT,
    freed_at_ms BIGINT
);
INSERT INTO "headrace_output" VALUES('s3://box/out/K','K','','publishing',NULL);
INSERT INTO "headrace_output" VALUES('s3://box/out/L','L','','unpublished',NULL);
INSERT INTO "headrace_output" VALUES('s3://box/out/M','M','','published',NULL);
CREATE TABLE headrace_pool (
    name TEXT NOT NULL PRIMARY KEY,
    controller TEXT NOT NULL,
    lease_until_ms BIGINT NOT NULL
);
CREATE TABLE headrace_queue (
    name TEXT NOT NULL PRIMARY KEY,
    paused BOOLEAN NOT NULL DEFAULT FALSE,
    draining BOOLEAN NOT NULL DEFAULT FALSE,
    pending_max BIGINT
, ageing_ms BIGINT NOT NULL DEFAULT 3600000);
INSERT INTO "headrace_queue" VALUES('narrow',0,0,5,3600000);
INSERT INTO "headrace_queue" VALUES('default',0,0,NULL,3600000);
CREATE TABLE "headrace_receiver" (
    id TEXT NOT NULL PRIMARY KEY,
    target TEXT NOT NULL,
    failures INTEGER NOT NULL DEFAULT 0,
    failing_since_at_ms BIGINT NOT NULL DEFAULT 0,
    rests_until_at_ms BIGINT NOT NULL DEFAULT 0,
    disabled_why TEXT NOT NULL DEFAULT ''
, tenant TEXT NOT NULL DEFAULT '');
INSERT INTO "headrace_receiver" VALUES('webhook-d2ac754524e5b849a1bb4d65e2827103','{"kind":"webhook","receiver_id":"webhook-d2ac754524e5b849a1bb4d65e2827103","url":"https://example.com","secrets":[],"format":"standard"}',0,0,0,'','');
CREATE TABLE headrace_schedule (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    settings TEXT NOT NULL,
    version INTEGER NOT NULL,
    changed_at_ms BIGINT NOT NULL,
    changed_by TEXT NOT NULL,
    next_at_ms BIGINT,
    claimed_until_ms BIGINT NOT NULL DEFAULT 0,
    last_at_ms BIGINT,
    last_job_id TEXT NOT NULL DEFAULT '',
    last_error TEXT NOT NULL DEFAULT '',
    missed INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, name)
);
CREATE TABLE headrace_schema (
    number INTEGER NOT NULL PRIMARY KEY,
    min_reader INTEGER NOT NULL,
    applied_at_ms BIGINT NOT NULL
);
INSERT INTO "headrace_schema" VALUES(1,1,1800000000000);
INSERT INTO "headrace_schema" VALUES(2,1,1800000000000);
INSERT INTO "headrace_schema" VALUES(3,1,1800000000000);
INSERT INTO "headrace_schema" VALUES(4,4,1800000000000);
INSERT INTO "headrace_schema" VALUES(5,5,1800000000000);
INSERT INTO "headrace_schema" VALUES(6,5,1800000000000);
INSERT INTO "headrace_schema" VALUES(7,7,1800000000000);
INSERT INTO "headrace_schema" VALUES(8,7,1800000000000);
INSERT INTO "headrace_schema" VALUES(9,7,1800000000000);
CREATE TABLE headrace_tag (
    job_id TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL, created_at_ms BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, name)
);
INSERT INTO "headrace_tag" VALUES('completed','team','blue',1800000000000);
CREATE TABLE headrace_usage (
    key_name TEXT NOT NULL PRIMARY KEY,
    day BIGINT NOT NULL,
    bytes BIGINT NOT NULL
);
CREATE TABLE headrace_worker (
    name TEXT NOT NULL PRIMARY KEY,
    start_id TEXT NOT NULL,
    info TEXT NOT NULL,
    report TEXT NOT NULL,
    lease_ms BIGINT NOT NULL,
    draining BOOLEAN NOT NULL DEFAULT FALSE,
    draining_by TEXT NOT NULL DEFAULT '',
    started_at_ms BIGINT NOT NULL,
    seen_at_ms BIGINT NOT NULL,
    stopped_at_ms BIGINT
);
INSERT INTO "headrace_worker" VALUES('w','','{"name":"w","start_id":"","host":"","pid":0,"version":"","queues":["default"],"models":["m","m@1"],"slots":1,"region":"","lease_ms":60000}','{"ready":true,"claims":true,"memory_bytes":null,"gpus":[],"last_crash":null}',60000,0,'',1800000000000,1800000000000,NULL);
CREATE TABLE headrace_worker_model (
    queue TEXT NOT NULL,
    model TEXT NOT NULL,
    reported_at_ms BIGINT NOT NULL,
    PRIMARY KEY (queue, model)
);
INSERT INTO "headrace_worker_model" VALUES('default','m',1800000000000);
INSERT INTO "headrace_worker_model" VALUES('default','m@1',1800000000000);
CREATE INDEX headrace_job_asleep ON headrace_job (queue, due_at_ms) WHERE state = 'pending' AND asleep;
CREATE INDEX headrace_job_running_of ON headrace_job (worker) WHERE state = 'running';
CREATE INDEX headrace_job_waiting_of ON headrace_job (tenant) WHERE state = 'pending';
CREATE INDEX headrace_job_expiring ON headrace_job (expires_at_ms)
    WHERE state = 'pending' AND started_at_ms IS NULL AND expires_at_ms IS NOT NULL;
CREATE INDEX headrace_job_deadline ON headrace_job (deadline_at_ms)
    WHERE state = 'pending' AND deadline_at_ms IS NOT NULL;
CREATE INDEX headrace_job_correlated ON headrace_job (correlation_id, created_at_ms, id)
    WHERE correlation_id <> '';
CREATE UNIQUE INDEX headrace_job_key ON headrace_job (tenant, idempotency_key)
    WHERE idempotency_key IS NOT NULL;
CREATE INDEX headrace_history_of ON headrace_history (job_id, number);
CREATE INDEX headrace_notification_open ON headrace_notification (receiver_id, due_at_ms, id)
    WHERE state IN ('waiting', 'claimed');
CREATE INDEX headrace_notification_dead ON headrace_notification (ended_at_ms) WHERE state = 'dead';
CREATE INDEX headrace_notification_of ON headrace_notification (job_id);
CREATE INDEX headrace_job_publishing ON headrace_job (publish_at_ms, id) WHERE publish_at_ms IS NOT NULL;
CREATE INDEX headrace_output_of ON headrace_output (owner_id) WHERE owner_id IS NOT NULL;
CREATE INDEX headrace_output_freed ON headrace_output (freed_at_ms) WHERE freed_at_ms IS NOT NULL;
CREATE INDEX headrace_job_awake ON headrace_job (queue, lane, rank_ms, id, due_at_ms)
    WHERE state = 'pending' AND NOT asleep;
CREATE INDEX headrace_job_running ON headrace_job (queue, lane, id) WHERE state = 'running';
CREATE INDEX headrace_job_ended ON headrace_job (ended_at_ms, id)
    WHERE ended_at_ms IS NOT NULL AND keep_ms IS NULL;
CREATE INDEX headrace_job_kept ON headrace_job ((ended_at_ms + keep_ms), id)
    WHERE ended_at_ms IS NOT NULL AND keep_ms IS NOT NULL;
CREATE INDEX headrace_job_publishing_of ON headrace_job (tenant, queue) WHERE state = 'publishing';
CREATE INDEX headrace_audit_at ON headrace_audit (at_ms);
CREATE INDEX headrace_job_fingerprint ON headrace_job (fingerprint, created_at_ms, id)
    WHERE fingerprint <> '';
CREATE INDEX headrace_job_failures ON headrace_job (ended_at_ms, id) WHERE fingerprint <> '';
CREATE INDEX headrace_job_failures_of ON headrace_job (tenant, ended_at_ms, id) WHERE fingerprint <> '';
CREATE INDEX headrace_job_state ON headrace_job (state, created_at_ms, id, tenant, queue, model, kind)
    WHERE length(id) >= 0;
CREATE INDEX headrace_job_tenant ON headrace_job (tenant, created_at_ms, id, queue, model, kind)
    WHERE length(id) >= 0;
CREATE INDEX headrace_tag_value ON headrace_tag (name, value, created_at_ms, job_id);
CREATE INDEX headrace_dependency_after ON headrace_dependency (after_id, job_id);
CREATE INDEX headrace_job_blocked_of ON headrace_job (tenant, queue) WHERE state = 'blocked';
CREATE INDEX headrace_job_blocked_in ON headrace_job (queue) WHERE state = 'blocked' AND length(queue) >= 0;
CREATE INDEX headrace_job_blocked_expiring ON headrace_job (expires_at_ms)
    WHERE state = 'blocked' AND expires_at_ms IS NOT NULL;
CREATE INDEX headrace_job_blocked_deadline ON headrace_job (deadline_at_ms)
    WHERE state = 'blocked' AND deadline_at_ms IS NOT NULL;
CREATE INDEX headrace_schedule_due ON headrace_schedule (next_at_ms) WHERE next_at_ms IS NOT NULL;
CREATE INDEX headrace_decision_pool ON headrace_decision (pool, number);
CREATE INDEX headrace_decision_at ON headrace_decision (at_ms);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('headrace_history',3);
COMMIT;
