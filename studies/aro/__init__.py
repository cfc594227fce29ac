"""Sweeps that repeat the paper's section IV; ``python -m studies.aro --help`` lists them."""
