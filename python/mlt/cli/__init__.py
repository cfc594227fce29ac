"""The ``mlt`` command line: one module per sub-command, each imported only when it is called."""
