-- Return the last version of each endpoint that is not deleted.
SELECT one.name, one.version, one.settings, one.created_at_ms, one.created_by, one.deleted
FROM headrace_endpoint AS one
WHERE NOT one.deleted AND one.version = (
    SELECT max(later.version) FROM headrace_endpoint AS later WHERE later.name = one.name
)
ORDER BY one.name
