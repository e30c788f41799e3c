SELECT count(*)
FROM (
    SELECT 1 FROM headrace_job AS job
    WHERE job.tenant = :tenant AND job.state = 'pending'
    LIMIT :row_limit
) AS pending
