"""A context's groups of options, read from arguments, environment and files: paths, code points, limits, faults."""
