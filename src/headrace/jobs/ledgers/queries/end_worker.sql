UPDATE headrace_worker SET stopped_at_ms = (SELECT headrace_now())
WHERE name = :name AND stopped_at_ms IS NULL
