"""The PSNet paper's figures 6, 7 and 13 again: ``python -m mlt.planners.topology.experiments --help``."""
