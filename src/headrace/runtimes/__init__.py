"""Ready-made models for common frameworks, and the lookup of a model by its name."""
