"""These tests run where TensorFlow is installed: ``make test-tensorflow`` makes that environment."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if find_spec("tensorflow") is None else []
