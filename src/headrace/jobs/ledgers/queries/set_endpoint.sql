INSERT INTO headrace_endpoint (id, target) VALUES (:id, :target)
ON CONFLICT (id) DO UPDATE SET target = excluded.target
