"""Sweeps that repeat the paper's section IV; ``python -m mlt.planners.routing.experiments --help`` lists them."""
