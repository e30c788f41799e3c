"""Settings from files: what a folder says about a model, and what a folder of them holds."""
