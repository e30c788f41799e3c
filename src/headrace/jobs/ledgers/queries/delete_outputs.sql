DELETE FROM headrace_output
WHERE freed_at_ms IS NOT NULL AND freed_at_ms < (SELECT headrace_now()) - :kept_ms
