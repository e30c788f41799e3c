"""What the kinds of jobs do: one payload (`infer`), a batch transform (`transform`), a stream into parts (`stream`)."""
