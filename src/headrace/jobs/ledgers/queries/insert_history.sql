WITH clock AS MATERIALIZED (SELECT headrace_now() AS now_ms),
given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(
        job_id text, entry_at_ms bigint, event text, attempt bigint, lease bigint, worker text, cause text,
        message text, done_by text, started_at_ms bigint
    )
)
INSERT INTO headrace_history (
    job_id, at_ms, event, attempt, lease, worker, cause, message, done_by, started_at_ms
)
SELECT
    job_id, coalesce(entry_at_ms, now_ms), event, attempt, lease, worker, cause, message, done_by,
    started_at_ms
FROM given CROSS JOIN clock
