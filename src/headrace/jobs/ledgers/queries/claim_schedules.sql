WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(
        of_tenant text, due_name text, run_at_ms bigint, missed_times bigint
    )
)
UPDATE headrace_schedule SET
    next_at_ms = run_at_ms,
    missed = missed_times,
    claimed_until_ms = (SELECT headrace_now()) + :lease_ms
FROM given
WHERE headrace_schedule.tenant = of_tenant AND headrace_schedule.name = due_name
