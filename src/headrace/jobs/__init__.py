"""Jobs that outlive a request: submitted now, queued durably, worked on under a lease, fetched later."""
