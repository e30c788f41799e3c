WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(
        dependent_id text, prerequisite_id text
    )
)
DELETE FROM headrace_dependency
WHERE (job_id, after_id) IN (SELECT dependent_id, prerequisite_id FROM given)
