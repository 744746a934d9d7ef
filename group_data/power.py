"""Power hosts. What a platform needs is in its row (docs/platform-matrix.md); here is what the fleet wants beside it."""

build_timeout = 14400  # seconds; some of the dependencies have no wheels and nobody has measured a build here
