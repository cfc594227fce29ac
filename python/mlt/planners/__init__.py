"""Planners: who holds the bytes, who aggregates, which route, which graph.

Plain Python: nothing here needs the native library. One cluster file (``cluster``) goes into every planner and one
plan file (``plan``) comes out of all of them.
"""
