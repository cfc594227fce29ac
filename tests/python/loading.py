"""Loads a program that is no module of a package, such as those of ``tools``, so that tests can call its functions."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(program: Path, name: str | None = None) -> ModuleType:
    """A new module of that program; ``name``: of the module, by default the file's.

    It is in ``sys.modules``, where dataclasses look for it.
    """
    spec = importlib.util.spec_from_file_location(name or program.stem, program)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def load_folder(folder: Path, name: str) -> ModuleType:
    """The same for a folder's ``__main__.py``, whose neighbours it then finds, as when the folder is run."""
    sys.path.insert(0, str(folder))
    return load(folder / "__main__.py", name)
