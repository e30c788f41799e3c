WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(deleted_id text)
)
DELETE FROM headrace_notification WHERE job_id IN (SELECT deleted_id FROM given)
