"""Maintenance of a job ledger and its objects: one task per module, and the service that runs them."""
