"""Sockets to protocols to dataplane to engine: thin doors of a served model."""
