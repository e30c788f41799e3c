"""The worker: claims jobs, sends heartbeats, runs attempts and settles their outcomes."""
