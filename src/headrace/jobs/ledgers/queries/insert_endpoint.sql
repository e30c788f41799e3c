-- Add a version, unless another process has just added it.
INSERT INTO headrace_endpoint (name, version, settings, created_at_ms, created_by, deleted)
VALUES (:name, :version, :settings, (SELECT headrace_now()), :created_by, :deleted)
ON CONFLICT DO NOTHING
RETURNING name, version, settings, created_at_ms, created_by, deleted
