"""ALEPH: which workers aggregate for which, as clusters of a worker graph."""
