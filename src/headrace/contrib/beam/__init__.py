"""The adapter for Apache Beam's RunInference. `headrace.beam` has its public names."""
