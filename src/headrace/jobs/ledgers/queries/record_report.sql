UPDATE headrace_worker SET report = :report, seen_at_ms = (SELECT headrace_now())
WHERE name = :worker AND stopped_at_ms IS NULL
RETURNING draining
