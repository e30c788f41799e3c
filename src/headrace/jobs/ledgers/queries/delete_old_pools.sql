-- Locked rows are skipped: concurrent controllers delete the same rows, and need not wait for each other.
DELETE FROM headrace_pool
WHERE name IN (
    SELECT old.name
    FROM headrace_pool AS old
    WHERE old.lease_until_ms < (SELECT headrace_now()) - :kept_ms
    FOR NO KEY UPDATE SKIP LOCKED
)
