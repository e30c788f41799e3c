INSERT INTO headrace_queue (name, paused, draining, pending_max, ageing_ms)
VALUES (:name, :paused, :draining, :pending_max, :ageing_ms)
ON CONFLICT (name) DO UPDATE
SET paused = excluded.paused, draining = excluded.draining, pending_max = excluded.pending_max,
    ageing_ms = excluded.ageing_ms
