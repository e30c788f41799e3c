-- Extend the leases that are still valid, and return them.
-- Ordered by an expression without an index: otherwise planners would scan all jobs for their order.
-- `state || ''` keeps planners from the partial index of running jobs: see claim_jobs.sql.
WITH clock AS MATERIALIZED (SELECT headrace_now() AS now_ms),
given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(
        beat_id text, beat_lease bigint, new_progress text, new_cursor text
    )
),
alive AS MATERIALIZED (
    SELECT job.id AS alive_id, new_progress, new_cursor
    FROM given JOIN headrace_job AS job ON job.id = beat_id AND job.lease = beat_lease
    WHERE job.state || '' = 'running'
    ORDER BY beat_id || ''
    FOR NO KEY UPDATE OF job
)
UPDATE headrace_job SET
    lease_until_ms = now_ms + :lease_ms,
    progress = coalesce(new_progress, headrace_job.progress),
    cursor = coalesce(new_cursor, headrace_job.cursor)
FROM alive, clock
WHERE headrace_job.id = alive_id AND headrace_job.state || '' = 'running'
RETURNING
    headrace_job.id, headrace_job.lease, headrace_job.cancel_requested,
    coalesce(headrace_job.deadline_at_ms <= headrace_now(), FALSE)
