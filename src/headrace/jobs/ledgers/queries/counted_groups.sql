-- Read the groups that have counters, by the event that nearly every group begins with.
SELECT DISTINCT queue, model, tenant
FROM headrace_counter
WHERE event = 'submitted'
LIMIT :row_limit
