"""Code shared by all plugins that average gradients: how much loss a step allows, and what it cost.

- ``loss``: bounds, schedules and ``lossy``.
- ``statistics``: bytes, losses and times of the last steps.
"""
