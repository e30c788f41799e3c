-- Return the times and ids of jobs in the order of one index, newest first, between two places; `listing.py`
-- has the words in braces. Only one index has the condition and the order: every other plan would have to
-- sort, which planners then avoid, however old their statistics are.
SELECT {place_ms} AS place_ms, {place_id} AS place_id
FROM {source}
WHERE {conditions}
    AND ({place_ms}, {place_id}) < (:upper_ms, :upper_id)
    AND ({place_ms}, {place_id}) >= (:lower_ms, :lower_id)
ORDER BY {place_ms} DESC, {place_id} DESC
LIMIT :row_limit
