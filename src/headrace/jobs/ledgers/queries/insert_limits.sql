WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(
        limit_kind text, limit_name text, new_running_max bigint, new_weight float8
    )
)
INSERT INTO headrace_limit (kind, name, running_max, weight)
SELECT limit_kind, limit_name, new_running_max, new_weight FROM given WHERE TRUE ORDER BY limit_kind, limit_name
ON CONFLICT (kind, name) DO UPDATE SET running_max = excluded.running_max, weight = excluded.weight
