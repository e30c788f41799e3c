-- {conditions} are those of the filter, as `client_operations.py` lists them.
SELECT {job_columns}
FROM headrace_job AS job
WHERE {conditions}
ORDER BY job.created_at_ms DESC, job.id DESC
LIMIT :row_limit
