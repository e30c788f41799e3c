SELECT day, bytes FROM headrace_usage WHERE key_name = :key_name
