-- All workers, or the one of a name; the table is small. Stopped workers come last, so that they never take
-- the place of one that lives.
SELECT
    one.info, one.report,
    (
        SELECT count(*) FROM headrace_job AS job WHERE job.worker = one.name AND job.state = 'running'
    ) AS running,
    one.draining, one.draining_by, one.started_at_ms, one.seen_at_ms, one.stopped_at_ms,
    (SELECT headrace_now()) AS read_at_ms
FROM headrace_worker AS one
WHERE
    coalesce(one.stopped_at_ms, one.seen_at_ms + one.lease_ms) >= (SELECT headrace_now()) - :kept_ms
    AND (CAST(:name AS text) = '' OR one.name = :name)
ORDER BY one.stopped_at_ms IS NOT NULL, one.seen_at_ms DESC, one.name
LIMIT :row_limit
