"""Shared by the planners: documents written by users."""
