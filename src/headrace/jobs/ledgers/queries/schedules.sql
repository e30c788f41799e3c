-- The schedules of a tenant, or all.
SELECT
    tenant, name, settings, version, changed_at_ms, changed_by, next_at_ms, last_at_ms, last_job_id,
    last_error, missed
FROM headrace_schedule
WHERE CAST(:tenant AS text) IS NULL OR tenant = :tenant
ORDER BY tenant, name
