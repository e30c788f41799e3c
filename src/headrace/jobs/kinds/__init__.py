"""The job kinds: `infer` (one payload), `transform` (a batch transform), `stream` (parts)."""
