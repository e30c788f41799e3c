DELETE FROM headrace_limit WHERE kind = :kind AND name = :name
