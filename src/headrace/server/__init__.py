"""Sockets to the dataplane: thin doors for the protocols of `headrace.protocols`."""
