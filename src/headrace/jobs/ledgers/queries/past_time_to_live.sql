-- Lock pending and blocked jobs that have not begun within their time to live; see past_deadline.sql.
WITH pending AS MATERIALIZED (
    SELECT {job_columns}
    FROM headrace_job AS job
    WHERE job.state = 'pending' AND job.started_at_ms IS NULL AND job.expires_at_ms IS NOT NULL
        AND job.expires_at_ms <= (SELECT headrace_now())
    ORDER BY job.expires_at_ms
    LIMIT :row_limit
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
blocked AS MATERIALIZED (
    SELECT {job_columns}
    FROM headrace_job AS job
    WHERE job.state = 'blocked' AND job.expires_at_ms IS NOT NULL
        AND job.expires_at_ms <= (SELECT headrace_now())
    ORDER BY job.expires_at_ms
    LIMIT :row_limit
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
SELECT {job_columns} FROM pending
UNION ALL
SELECT {job_columns} FROM blocked
LIMIT :row_limit
