INSERT INTO headrace_receiver (id, target) VALUES (:id, :target)
ON CONFLICT (id) DO NOTHING
