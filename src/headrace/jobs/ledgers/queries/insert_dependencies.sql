WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(
        dependent_id text, prerequisite_id text
    )
)
INSERT INTO headrace_dependency (job_id, after_id)
SELECT dependent_id, prerequisite_id
FROM given
WHERE TRUE
ON CONFLICT DO NOTHING
