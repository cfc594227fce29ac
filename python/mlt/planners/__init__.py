"""Planners of placement, aggregation, routes and network graphs.

Plain Python: no module needs the native library. Every planner reads the cluster file (``cluster``) and writes the plan
file (``plan``).
"""
