WITH clock AS MATERIALIZED (SELECT headrace_now() AS now_ms),
given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(
        job_id text, event text, attempt bigint, lease bigint, worker text, cause text, message text,
        done_by text
    )
)
INSERT INTO headrace_history (job_id, at_ms, event, attempt, lease, worker, cause, message, done_by)
SELECT job_id, now_ms, event, attempt, lease, worker, cause, message, done_by
FROM given CROSS JOIN clock
