"""Adapters for other engines: models of headrace within pipelines of Apache Beam and Ray Data."""
