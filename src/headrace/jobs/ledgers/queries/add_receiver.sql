INSERT INTO headrace_receiver (id, target, tenant) VALUES (:id, :target, :tenant)
ON CONFLICT (id) DO NOTHING
