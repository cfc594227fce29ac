"""ALEPH: choice of the workers that aggregate for others, as clusters of a worker graph."""
