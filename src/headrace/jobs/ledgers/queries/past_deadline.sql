-- Lock pending and blocked jobs whose deadline has passed, each by the partial index of its state.
-- Two queries, because a union cannot lock rows.
WITH pending AS MATERIALIZED (
    SELECT {job_columns}
    FROM headrace_job AS job
    WHERE job.state = 'pending' AND job.deadline_at_ms IS NOT NULL
        AND job.deadline_at_ms <= (SELECT headrace_now())
    ORDER BY job.deadline_at_ms
    LIMIT :row_limit
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
blocked AS MATERIALIZED (
    SELECT {job_columns}
    FROM headrace_job AS job
    WHERE job.state = 'blocked' AND job.deadline_at_ms IS NOT NULL
        AND job.deadline_at_ms <= (SELECT headrace_now())
    ORDER BY job.deadline_at_ms
    LIMIT :row_limit
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
SELECT {job_columns} FROM pending
UNION ALL
SELECT {job_columns} FROM blocked
LIMIT :row_limit
