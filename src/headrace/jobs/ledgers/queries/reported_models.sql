SELECT queue, model
FROM headrace_worker_model
WHERE reported_at_ms >= (SELECT headrace_now()) - :kept_ms
