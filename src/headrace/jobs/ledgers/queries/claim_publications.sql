-- Return jobs whose end is due to be published, and make it due again later, as another try.
-- Each process divides the rows with others: it skips the rows that they have locked.
WITH clock AS MATERIALIZED (SELECT headrace_now() AS now_ms),
candidate AS MATERIALIZED (
    SELECT job.id AS candidate_id
    FROM headrace_job AS job
    WHERE job.publish_at_ms IS NOT NULL AND job.publish_at_ms <= (SELECT headrace_now())
    ORDER BY job.publish_at_ms, job.id
    LIMIT :row_limit
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE headrace_job SET
    publish_at_ms = now_ms + CASE WHEN headrace_job.publish_tries < :doublings_max
        THEN :delay_ms * (1 << headrace_job.publish_tries) ELSE :delay_max_ms END,
    publish_tries = headrace_job.publish_tries + 1
FROM candidate, clock
WHERE headrace_job.id = candidate_id
RETURNING {job_columns}
