-- Keep the names of deleted jobs for their tenants.
WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(deleted_id text)
)
UPDATE headrace_output SET owner_id = NULL, freed_at_ms = (SELECT headrace_now())
WHERE owner_id IS NOT NULL AND owner_id IN (SELECT deleted_id FROM given)
