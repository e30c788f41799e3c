"""The checks of a job ledger by subject, one function per guarantee.

`headrace.testing.job_ledger` collects them.
"""
