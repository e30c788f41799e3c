SELECT name, version, settings, created_at_ms, created_by, deleted
FROM headrace_endpoint
WHERE name = :name
ORDER BY version DESC
LIMIT :row_limit
