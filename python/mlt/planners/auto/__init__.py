"""Tries every planner on one job and keeps the best plan."""
