"""The HTTP API of jobs: routes over `headrace.jobs.service`."""
