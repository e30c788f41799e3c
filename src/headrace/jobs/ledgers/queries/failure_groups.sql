-- Group the last failed jobs by fingerprint. {conditions} are those of a tenant, if it is one.
SELECT newest.fingerprint, count(*), min(newest.ended_at_ms), max(newest.ended_at_ms), max(newest.id)
FROM (
    SELECT job.fingerprint, job.ended_at_ms, job.id
    FROM headrace_job AS job
    WHERE job.fingerprint <> '' AND {conditions}
    ORDER BY job.ended_at_ms DESC, job.id DESC
    LIMIT :jobs_max
) AS newest
GROUP BY newest.fingerprint
ORDER BY count(*) DESC, max(newest.ended_at_ms) DESC, newest.fingerprint
LIMIT :row_limit
