"""What a host is, read in batches: pyinfra caches no fact, so each of these is one round trip."""
