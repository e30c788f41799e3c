-- Return the jobs among these that still come after an unfinished one.
WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(dependent_id text)
)
SELECT dependent_id
FROM given
WHERE (
    SELECT dependency.after_id FROM headrace_dependency AS dependency
    WHERE dependency.job_id = dependent_id
    ORDER BY dependency.after_id
    LIMIT 1
) IS NOT NULL
