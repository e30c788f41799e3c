"""Scaling: the number of workers that a load needs, and the controller that brings a pool to it."""
