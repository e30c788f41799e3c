-- Lock limits, so that no other claim counts the jobs below them at the same time. A limit that another
-- claim has locked is left out.
WITH given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(limit_kind text, limit_name text)
)
SELECT bound.kind, bound.name
FROM given JOIN headrace_limit AS bound ON bound.kind = limit_kind AND bound.name = limit_name
FOR NO KEY UPDATE OF bound SKIP LOCKED
