SELECT owner_key, owner_tenant, owner_id
FROM headrace_output
WHERE location = :location
FOR NO KEY UPDATE OF headrace_output
