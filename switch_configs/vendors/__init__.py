"""One module per switch system; each has a ``TARGET`` and the registry finds it."""
