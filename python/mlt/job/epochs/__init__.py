"""Epochs of an elastic job: who is a member of the next one, and the messages by which the members agree on it.

An epoch is a job of its own for ``mlt.Context``, with ranks from 0. Between two epochs workers and services join or
leave, in the same processes. ``roster`` decides (no I/O), ``coordinator`` runs it for the members' connections,
``member`` is a member's end of one. ``mlt.elastic`` has what users import.
"""
