-- Count the pending and blocked jobs of a tenant, by the partial index of each state, up to a limit.
SELECT count(*)
FROM (
    SELECT 1 FROM headrace_job AS job
    WHERE job.tenant = :tenant AND job.state = 'pending'
    UNION ALL
    SELECT 1 FROM headrace_job AS job
    WHERE job.tenant = :tenant AND job.state = 'blocked'
    LIMIT :row_limit
) AS pending
