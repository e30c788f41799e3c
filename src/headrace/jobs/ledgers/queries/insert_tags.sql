WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(
        tagged_id text, tag_name text, tag_value text
    )
)
INSERT INTO headrace_tag (job_id, name, value)
SELECT tagged_id, tag_name, tag_value FROM given
