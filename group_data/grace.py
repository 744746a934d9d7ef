"""Grace hosts. What a platform needs is in its row (docs/platform-matrix.md); here is what the fleet wants beside it."""

build_timeout = 10800  # seconds; builds of CUDA kernels take hours on few cores, and nobody has measured one here
