-- Another start_id is a new start, which ends an earlier order to drain.
INSERT INTO headrace_worker (name, start_id, info, report, lease_ms, started_at_ms, seen_at_ms)
VALUES (
    :name, :start_id, :info, :report, :lease_ms, (SELECT headrace_now()), (SELECT headrace_now())
)
ON CONFLICT (name) DO UPDATE SET
    start_id = excluded.start_id,
    info = excluded.info,
    report = excluded.report,
    lease_ms = excluded.lease_ms,
    draining = headrace_worker.draining AND headrace_worker.start_id = excluded.start_id,
    draining_by = CASE
        WHEN headrace_worker.start_id = excluded.start_id THEN headrace_worker.draining_by ELSE ''
    END,
    started_at_ms = CASE
        WHEN headrace_worker.start_id = excluded.start_id
        THEN headrace_worker.started_at_ms ELSE excluded.started_at_ms
    END,
    seen_at_ms = excluded.seen_at_ms,
    stopped_at_ms = NULL
