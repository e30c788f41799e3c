-- Locked rows are skipped: concurrent registrations delete the same rows, and need not wait for each other.
DELETE FROM headrace_worker
WHERE name IN (
    SELECT old.name
    FROM headrace_worker AS old
    WHERE coalesce(old.stopped_at_ms, old.seen_at_ms + old.lease_ms) < (SELECT headrace_now()) - :kept_ms
    FOR NO KEY UPDATE SKIP LOCKED
)
