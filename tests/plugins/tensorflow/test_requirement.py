"""Requirements of ``mlt.tensorflow``: TensorFlow, and Keras on it; and what it must not import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checks import assert_names
from mlt.tensorflow import requirement

from mlt._shared.extras import how_to_install


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize(("backend", "plugin"), [("torch", "mlt.torch"), ("jax", "no plugin for JAX")])
def test_keras_on_another_backend__names_the_right_plugin(
    backend: str, plugin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.setenv("KERAS_BACKEND", backend)
    with pytest.raises(RuntimeError) as raised:
        requirement.require_keras_of_tensorflow("mlt.tensorflow.keras")
    assert_names(raised.value, "mlt.tensorflow.keras", repr(backend), plugin, "KERAS_BACKEND=tensorflow")


def test_keras_backend__is_that_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "keras", raising=False)
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    assert requirement.keras_backend() == "tensorflow"
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "jax"}))
    assert requirement.keras_backend() == "jax"
    (tmp_path / "keras.json").write_text("{")
    assert requirement.keras_backend() == "tensorflow"


def test_import__with_keras_on_torch_fails_before_torch_is_imported() -> None:
    done = run("import mlt.tensorflow.keras", KERAS_BACKEND="torch")
    assert done.returncode == 1
    assert_names(done.stderr, "RuntimeError", "mlt.torch", "KERAS_BACKEND=tensorflow")


def test_import__without_tensorflow_says_how_to_install_it() -> None:
    done = run("import sys; sys.modules['tensorflow'] = None; import mlt.tensorflow")
    assert done.returncode == 1
    assert_names(done.stderr, "ModuleNotFoundError", "mlt.tensorflow needs TensorFlow", how_to_install("tensorflow"))


def test_import__of_one_plugin_imports_no_other_framework() -> None:
    code = "import sys, mlt.tensorflow; print([one for one in ('torch', 'mlt.torch', 'jax') if one in sys.modules])"
    assert run(code).stdout.strip() == "[]"
