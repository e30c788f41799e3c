-- A paused schedule stays paused. A claim of the earlier version ends.
INSERT INTO headrace_schedule (tenant, name, settings, version, changed_at_ms, changed_by, next_at_ms)
VALUES (:tenant, :name, :settings, 1, (SELECT headrace_now()), :changed_by, :next_at_ms)
ON CONFLICT (tenant, name) DO UPDATE SET
    settings = excluded.settings,
    version = headrace_schedule.version + 1,
    changed_at_ms = excluded.changed_at_ms,
    changed_by = excluded.changed_by,
    next_at_ms = CASE WHEN headrace_schedule.next_at_ms IS NOT NULL THEN excluded.next_at_ms END,
    claimed_until_ms = 0
