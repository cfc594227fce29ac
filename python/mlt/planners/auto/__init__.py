"""Every planner tried on one job, and the best plan kept."""
