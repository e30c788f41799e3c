WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(key_tenant text, key text)
)
SELECT {job_columns}
FROM given JOIN headrace_job AS job ON job.tenant = key_tenant AND job.idempotency_key = key
WHERE job.idempotency_key IS NOT NULL
