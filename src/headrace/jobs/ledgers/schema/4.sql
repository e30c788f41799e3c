-- The owners of output names, and the due times of publications. A result that is not published yet
-- is no longer `completed` but `publishing`: programs that do not know this state must not run.
ALTER TABLE headrace_job ADD COLUMN publish_at_ms BIGINT;
ALTER TABLE headrace_job ADD COLUMN publish_tries INTEGER NOT NULL DEFAULT 0;
UPDATE headrace_job SET publish_at_ms = ended_at_ms WHERE unpublished;
DELETE FROM headrace_notification WHERE state = 'held' AND job_id IN (
    SELECT id FROM headrace_job WHERE unpublished AND state = 'completed'
);
UPDATE headrace_job SET state = 'publishing', ended_at_ms = NULL WHERE unpublished AND state = 'completed';
DROP INDEX headrace_job_unpublished;
ALTER TABLE headrace_job DROP COLUMN unpublished;
CREATE INDEX headrace_job_publishing ON headrace_job (publish_at_ms, id) WHERE publish_at_ms IS NOT NULL;
CREATE TABLE headrace_output (
    location TEXT COLLATE "C" NOT NULL PRIMARY KEY,
    owner_key TEXT COLLATE "C" NOT NULL,
    owner_tenant TEXT COLLATE "C" NOT NULL,
    owner_id TEXT COLLATE "C",
    freed_at_ms BIGINT
);
CREATE INDEX headrace_output_of ON headrace_output (owner_id) WHERE owner_id IS NOT NULL;
CREATE INDEX headrace_output_freed ON headrace_output (freed_at_ms) WHERE freed_at_ms IS NOT NULL;
