"""Runners that distribute the tasks of a transform to processes, to Ray or to Apache Beam."""
