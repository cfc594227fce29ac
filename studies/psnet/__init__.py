"""The PSNet paper's figures 6, 7 and 13 again: ``python -m studies.psnet --help``."""
