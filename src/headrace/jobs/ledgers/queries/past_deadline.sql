-- Lock pending jobs whose deadline has passed.
SELECT {job_columns}
FROM headrace_job AS job
WHERE job.state = 'pending' AND job.deadline_at_ms IS NOT NULL
    AND job.deadline_at_ms <= (SELECT headrace_now())
ORDER BY job.deadline_at_ms
LIMIT :row_limit
FOR NO KEY UPDATE OF job SKIP LOCKED
