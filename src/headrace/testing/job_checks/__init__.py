"""The promises of a job ledger, one function each, by subject; `headrace.testing.job_ledger` gathers them."""
