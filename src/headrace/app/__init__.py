"""The composition root: builds and joins; it decides nothing."""
