-- Let the notifications of a published end go out.
UPDATE headrace_notification
SET state = 'waiting', due_at_ms = (SELECT headrace_now()), data = :data
WHERE job_id = :job_id AND state = 'held'
