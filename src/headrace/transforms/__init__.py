"""Inputs to shards to tasks to assembled outputs: one predictions file for each input object."""
