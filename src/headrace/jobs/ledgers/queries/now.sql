SELECT headrace_now()
