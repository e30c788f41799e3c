-- Locked rows are skipped, as concurrent transactions delete the same rows.
DELETE FROM headrace_decision
WHERE number IN (
    SELECT decision.number
    FROM headrace_decision AS decision
    WHERE decision.at_ms < (SELECT headrace_now()) - :kept_ms
    ORDER BY decision.at_ms
    LIMIT :row_limit
    FOR NO KEY UPDATE SKIP LOCKED
)
