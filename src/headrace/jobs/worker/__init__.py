"""The worker: claims jobs, keeps their leases alive, runs them, settles what they came to."""
