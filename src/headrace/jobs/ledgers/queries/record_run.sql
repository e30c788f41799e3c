-- A schedule that was paused or resumed since its claim keeps its next time. A late record of a run
-- before the last one changes nothing.
UPDATE headrace_schedule SET
    next_at_ms = CASE WHEN next_at_ms = :at_ms THEN CAST(:next_at_ms AS bigint) ELSE next_at_ms END,
    claimed_until_ms = CASE WHEN next_at_ms = :at_ms THEN 0 ELSE claimed_until_ms END,
    last_at_ms = :at_ms,
    last_job_id = CASE WHEN :job_id = '' THEN last_job_id ELSE :job_id END,
    last_error = :error
WHERE
    tenant = :tenant AND name = :name AND version = :version AND changed_at_ms = :changed_at_ms
    AND (next_at_ms = :at_ms OR coalesce(last_at_ms, 0) < :at_ms)
RETURNING name
