-- Return ended jobs whose retention has passed, in no order: the server's, or one of their own, up to the
-- limit of each.
SELECT {job_columns}
FROM headrace_job AS job
WHERE job.id IN (
    SELECT old.id FROM (
        SELECT job.id FROM headrace_job AS job
        WHERE job.ended_at_ms IS NOT NULL AND job.keep_ms IS NULL AND job.ended_at_ms < :before_ms
        ORDER BY job.ended_at_ms, job.id
        LIMIT :row_limit
    ) AS old
    UNION ALL
    SELECT own.id FROM (
        SELECT job.id FROM headrace_job AS job
        WHERE job.ended_at_ms IS NOT NULL AND job.keep_ms IS NOT NULL
            AND job.ended_at_ms + job.keep_ms < (SELECT headrace_now())
        ORDER BY job.ended_at_ms + job.keep_ms, job.id
        LIMIT :row_limit
    ) AS own
)
