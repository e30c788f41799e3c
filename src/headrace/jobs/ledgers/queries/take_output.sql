UPDATE headrace_output SET
    owner_key = :owner_key, owner_tenant = :owner_tenant, owner_id = :owner_id, freed_at_ms = NULL
WHERE location = :location
