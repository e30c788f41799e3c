-- Return the number of entries that find_audit.sql reads, and the number of the last one.
SELECT count(*), min(number)
FROM (
    SELECT entry.number FROM headrace_audit AS entry
    WHERE entry.number < :before_number
    ORDER BY entry.number DESC
    LIMIT :read_limit
) AS entry
