"""Sockets to protocols to dataplane to engine: the doors of a served model."""
