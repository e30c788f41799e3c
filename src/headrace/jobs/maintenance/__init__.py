"""What keeps a job ledger and its objects in order: one chore, one file, and the thread that does them by turns."""
