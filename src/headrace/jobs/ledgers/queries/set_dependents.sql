-- Mark locked jobs that others come after.
WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(prerequisite_id text)
)
UPDATE headrace_job SET has_dependents = TRUE
WHERE id IN (SELECT prerequisite_id FROM given) AND NOT has_dependents
