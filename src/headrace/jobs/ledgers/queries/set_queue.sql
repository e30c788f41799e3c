INSERT INTO headrace_queue (name, paused, draining, pending_max)
VALUES (:name, :paused, :draining, :pending_max)
ON CONFLICT (name) DO UPDATE
SET paused = excluded.paused, draining = excluded.draining, pending_max = excluded.pending_max
