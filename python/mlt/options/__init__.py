"""Option groups of a context, read from arguments, environment and files: paths, DSCPs, limits, faults."""
