"""Ready-made Models, and how a model is found from what a user writes."""
