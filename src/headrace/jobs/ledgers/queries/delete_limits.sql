DELETE FROM headrace_limit WHERE kind = :kind
