-- Lock the schedules that are due and not claimed. A claim that has passed remains as its time.
SELECT
    tenant, name, settings, version, changed_at_ms, changed_by, next_at_ms, last_at_ms, last_job_id,
    last_error, missed,
    claimed_until_ms, (SELECT headrace_now()) AS claimed_at_ms
FROM headrace_schedule AS schedule
WHERE
    schedule.next_at_ms <= (SELECT headrace_now())
    AND schedule.claimed_until_ms <= (SELECT headrace_now())
ORDER BY schedule.next_at_ms, schedule.tenant, schedule.name
LIMIT :row_limit
FOR NO KEY UPDATE OF schedule SKIP LOCKED
