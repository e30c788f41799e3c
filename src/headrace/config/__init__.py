"""Settings files: models, folders of models, and the settings of jobs."""
