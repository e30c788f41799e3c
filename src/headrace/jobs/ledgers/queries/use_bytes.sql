-- Count bytes of an API key on a day, and return the count, unless it would exceed the limit of the day.
-- The row of an earlier day begins anew. If the clock was moved back, the later day goes on.
INSERT INTO headrace_usage AS usage (key_name, day, bytes)
SELECT CAST(:key_name AS text), CAST(:today AS bigint), CAST(:more_bytes AS bigint)
WHERE CAST(:more_bytes AS bigint) <= CAST(:bytes_max AS bigint)
ON CONFLICT (key_name) DO UPDATE SET
    day = CASE WHEN usage.day < excluded.day THEN excluded.day ELSE usage.day END,
    bytes = excluded.bytes + CASE WHEN usage.day < excluded.day THEN 0 ELSE usage.bytes END
WHERE usage.day < excluded.day OR usage.bytes <= CAST(:bytes_max AS bigint) - excluded.bytes
RETURNING day, bytes
