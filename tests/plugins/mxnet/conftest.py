"""These tests run where MXNet is installed: ``make test-mxnet`` makes that environment."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = ["test_*.py"] if find_spec("mxnet") is None else []
