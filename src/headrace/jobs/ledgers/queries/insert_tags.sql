WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(
        tagged_id text, tag_name text, tag_value text, tagged_at_ms bigint
    )
)
INSERT INTO headrace_tag (job_id, name, value, created_at_ms)
SELECT tagged_id, tag_name, tag_value, tagged_at_ms FROM given
