-- Each number comes from the partial index of its states, and stops at the limit.
SELECT
    (SELECT count(*) FROM (
        SELECT n.receiver_id FROM headrace_notification AS n
        WHERE n.state IN ('waiting', 'claimed')
        ORDER BY n.receiver_id
        LIMIT :row_limit
    ) AS open) AS open,
    (SELECT count(*) FROM (
        SELECT n.ended_at_ms FROM headrace_notification AS n
        WHERE n.state = 'dead'
        ORDER BY n.ended_at_ms
        LIMIT :row_limit
    ) AS dead) AS dead
