WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(running_id text)
)
UPDATE headrace_job SET cancel_requested = TRUE WHERE id IN (SELECT running_id FROM given)
