-- Write the next states of locked jobs: every change of a state except a claim.
-- Comparing lease and state although the rows are locked costs nothing, and keeps the guarantee in
-- one place.
WITH clock AS MATERIALIZED (SELECT headrace_now() AS now_ms),
given AS MATERIALIZED (
    SELECT * FROM jsonb_to_recordset(CAST(:given AS jsonb)) AS record(
        new_id text, old_lease bigint, old_state text, new_state text, has_ended boolean,
        due_in_ms bigint, restart_lane text, restart_times boolean, expires_in_ms bigint, deadline_in_ms bigint,
        new_attempt bigint, new_crashes bigint, new_started_at_ms bigint, new_cancel_requested boolean,
        new_progress text, new_cursor text, new_result text, new_published_uri text,
        publish_in_ms bigint, new_failure text, new_fingerprint text
    )
)
UPDATE headrace_job SET
    state = new_state,
    attempt = new_attempt,
    crashes = new_crashes,
    started_at_ms = new_started_at_ms,
    cancel_requested = new_cancel_requested,
    lease_until_ms = NULL,
    ended_at_ms = CASE WHEN has_ended THEN now_ms END,
    due_at_ms = CASE WHEN due_in_ms IS NULL THEN headrace_job.due_at_ms ELSE now_ms + due_in_ms END,
    asleep = coalesce(due_in_ms, 0) > 0,
    lane = coalesce(restart_lane, headrace_job.lane),
    rank_ms = CASE WHEN due_in_ms IS NULL THEN headrace_job.rank_ms ELSE now_ms + due_in_ms
        + headrace_job.priority * coalesce(
            (SELECT ageing_ms FROM headrace_queue WHERE name = headrace_job.queue), 3600000
        ) END,
    expires_at_ms =
        CASE WHEN restart_times THEN now_ms + expires_in_ms ELSE headrace_job.expires_at_ms END,
    deadline_at_ms =
        CASE WHEN restart_times THEN now_ms + deadline_in_ms ELSE headrace_job.deadline_at_ms END,
    progress = new_progress,
    cursor = new_cursor,
    result = new_result,
    published_uri = new_published_uri,
    publish_at_ms = now_ms + publish_in_ms,
    publish_tries = 0,
    failure = new_failure,
    fingerprint = new_fingerprint
FROM given, clock
WHERE headrace_job.id = ANY (ARRAY[new_id]) AND headrace_job.lease = old_lease
    AND headrace_job.state || '' = old_state
RETURNING
    headrace_job.id, headrace_job.due_at_ms, headrace_job.ended_at_ms, headrace_job.expires_at_ms,
    headrace_job.deadline_at_ms, (SELECT headrace_now())
