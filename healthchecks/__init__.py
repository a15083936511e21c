"""Checks of GPUs, links, NICs and the host. Knows nothing of workers or rounds."""
