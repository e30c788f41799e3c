"""Requests to addresses that clients name: one policy, one client, no private networks."""
