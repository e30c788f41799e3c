"""The servers of models and jobs: listeners, protocol routes, the dataplane, metrics and traces."""
