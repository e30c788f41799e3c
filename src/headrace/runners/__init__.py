"""Runners that distribute the tasks of a run to processes, to Ray or to Apache Beam."""
