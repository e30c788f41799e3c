-- Claim the names that nobody owns, and return them. Sorted, so that concurrent statements lock them
-- in one order.
WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(
        new_location text, new_key text, new_tenant text, new_owner_id text
    )
)
INSERT INTO headrace_output (location, owner_key, owner_tenant, owner_id)
SELECT new_location, new_key, new_tenant, new_owner_id
FROM given
WHERE TRUE
ORDER BY new_location
ON CONFLICT DO NOTHING
RETURNING location
