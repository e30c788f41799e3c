-- Take bytes that were counted and not used off the count of their day.
UPDATE headrace_usage SET bytes = bytes - :less_bytes
WHERE key_name = :key_name AND day = :counted_day AND bytes >= :less_bytes
