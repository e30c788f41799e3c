-- Delete the dependencies of jobs that are no longer blocked.
WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(dependent_id text)
)
DELETE FROM headrace_dependency WHERE job_id IN (SELECT dependent_id FROM given)
