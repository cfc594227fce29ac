"""Regeneration commands: each module repeats a paper's evaluation and writes its numbers and figures to a folder."""
