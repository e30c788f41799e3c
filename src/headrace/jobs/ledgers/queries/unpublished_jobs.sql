SELECT {job_columns}
FROM headrace_job AS job
WHERE job.unpublished AND job.ended_at_ms < :before_ms
ORDER BY job.ended_at_ms, job.id
LIMIT :row_limit
