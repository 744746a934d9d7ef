"""The worker's place."""
