WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(queue_name text)
)
INSERT INTO headrace_queue (name)
SELECT queue_name FROM given WHERE TRUE ORDER BY queue_name
ON CONFLICT DO NOTHING
RETURNING name
