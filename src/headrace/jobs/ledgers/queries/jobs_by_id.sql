WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(wanted_id text)
)
SELECT {job_columns}
FROM given JOIN headrace_job AS job ON job.id = wanted_id
