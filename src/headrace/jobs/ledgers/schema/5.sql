-- Targets of notifications are called receivers; endpoints are those of jobs.
ALTER TABLE headrace_endpoint RENAME TO headrace_receiver;
ALTER TABLE headrace_notification RENAME COLUMN endpoint_id TO receiver_id;
