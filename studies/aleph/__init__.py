"""ALEPH's simulations, and how far its clustering is from the optimum."""
