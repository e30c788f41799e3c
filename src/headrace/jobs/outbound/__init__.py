"""Requests to addresses that somebody outside has named: one policy, one client, nothing private within reach."""
