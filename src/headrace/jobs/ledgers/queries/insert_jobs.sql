-- Insert jobs as far as their queues accept them, and return the inserted ones.
-- A tenant's jobs of a limited queue are counted once per statement; unlimited queues cost nothing. On
-- PostgreSQL two concurrent submissions do not see each other's jobs, so that together they may exceed
-- the limit.
-- Blocked jobs take no place in their queue.
WITH clock AS MATERIALIZED (SELECT headrace_now() AS now_ms),
given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(
        new_id text, new_state text, place bigint, new_queue text, new_model text, new_kind text, new_tenant text,
        new_priority bigint, new_attempts_max bigint, new_body_digest text, new_correlation_id text,
        new_key text, new_spec text, new_region text, new_lane text, delay_ms bigint,
        expires_in_ms bigint, deadline_in_ms bigint, new_keep_ms bigint
    )
),
open_queue AS MATERIALIZED (
    SELECT
        name,
        new_tenant AS tenant,
        ageing_ms,
        CASE WHEN pending_max IS NOT NULL THEN
            pending_max
            - (SELECT count(*) FROM headrace_job AS job
                WHERE job.tenant = new_tenant AND job.state = 'pending' AND job.queue = name)
        END AS free_places
    FROM headrace_queue JOIN (SELECT DISTINCT new_queue, new_tenant FROM given) AS given_tenant ON name = new_queue
    WHERE NOT draining
)
INSERT INTO headrace_job (
    id, state, queue, model, kind, tenant, priority, attempts_max, body_digest, correlation_id,
    idempotency_key, spec, region, lane, created_at_ms, due_at_ms, rank_ms, asleep, expires_at_ms,
    deadline_at_ms, keep_ms
)
SELECT
    new_id, new_state, new_queue, new_model, new_kind, new_tenant, new_priority, new_attempts_max,
    new_body_digest, new_correlation_id, new_key, new_spec, new_region, new_lane, now_ms,
    now_ms + delay_ms, now_ms + delay_ms + new_priority * ageing_ms, delay_ms > 0, now_ms + expires_in_ms, now_ms + deadline_in_ms,
    new_keep_ms
FROM given JOIN open_queue ON open_queue.name = new_queue AND open_queue.tenant = new_tenant CROSS JOIN clock
WHERE open_queue.free_places IS NULL OR new_state = 'blocked' OR place <= open_queue.free_places
ORDER BY place
ON CONFLICT DO NOTHING
RETURNING {job_columns}
