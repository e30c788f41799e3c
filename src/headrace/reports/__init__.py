"""The report of a run: its figures, and a page with plots of what was observed."""
