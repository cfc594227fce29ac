"""Test accuracy of the same two models, trained on the same images by each framework over mlt (docs/bound.md).

    make same-images                                   # needs root, and the environments of TensorFlow and MXNet
    python tools/same_images --frameworks torch --seeds 2

Two workers on hosts of a testbed whose links lose packets, with a loss bound; and one process without a network, which
sees the same batches. The images are the demo's, reduced to 14 x 14 pixels.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlt.demo import data as images_of
from mlt.testbed import Testbed

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from rank_outputs import PIPES, outputs_of  # noqa: E402

ENVIRONMENTS = {"torch": ".venv", "tensorflow": ".venv-tensorflow", "mxnet": ".venv-mxnet"}
MODELS = ("vgg", "resnet")
LIMIT_SECONDS = 230
Accuracies = dict[str, list[float]]


def write_images(path: Path, train: int, test: int) -> str:
    """Write these numbers of images, normalised; the name of the data."""
    data = images_of.load()

    def reduced(images: np.ndarray) -> np.ndarray:
        halved = images.astype(np.float32).reshape(-1, 1, 14, 2, 14, 2).mean((3, 5)) / 255.0
        return (halved - np.float32(0.2)) / np.float32(0.35)

    order = np.random.RandomState(0).permutation(len(data.train_labels))[:train]
    tested = np.random.RandomState(0).permutation(len(data.test_labels))[:test]
    np.savez(
        path,
        train_images=reduced(data.train_images[order]),
        train_labels=data.train_labels[order],
        test_images=reduced(data.test_images[tested]),
        test_labels=data.test_labels[tested],
    )
    return data.name


def command(framework: str, arguments: Sequence[str]) -> list[str]:
    """The command of a worker."""
    return [
        str(HERE.parents[1] / ENVIRONMENTS[framework] / "bin/python"),
        str(HERE / "train.py"),
        framework,
        *arguments,
    ]


def alone(framework: str, arguments: Sequence[str]) -> Accuracies:
    """Accuracies of one process without a network."""
    done = subprocess.run(
        command(framework, [*arguments, "alone"]), check=True, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    found: Accuracies = json.loads(done.stdout.splitlines()[-1])
    return found


def on_testbed(framework: str, arguments: Sequence[str], rate: str, loss: str, bound: str) -> Accuracies:
    """Accuracies of two workers, from rank 0."""
    with Testbed(hosts=2, rate=rate, loss=loss) as bed:
        processes = [
            bed.popen(
                host,
                command(framework, [*arguments, bound]),
                env={"RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"},
                **PIPES,
            )
            for rank, host in enumerate(bed.hosts)
        ]
        outputs = outputs_of(f"{framework} over mlt", processes, LIMIT_SECONDS)
    found: Accuracies = json.loads(outputs[0].splitlines()[-1])
    return found


def cell(values: Sequence[float]) -> str:
    """Mean and spread of the seeds."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.1%} ± {spread:.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", default=",".join(ENVIRONMENTS), help="(default: %(default)s)")
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--loss", default="1%")
    parser.add_argument("--bound", default="0.1")
    chosen = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "images.npz"
        name = write_images(file, chosen.images, 1000)
        arguments = [str(file), str(chosen.epochs), str(chosen.seeds)]
        for framework in chosen.frameworks.split(","):
            found = {"alone": alone(framework, arguments)}
            found["mlt"] = on_testbed(framework, arguments, chosen.rate, chosen.loss, chosen.bound)
            print(framework, json.dumps(found), flush=True)
            rows.append(
                " | ".join(["", framework, *(cell(found[how][of]) for of in MODELS for how in found), ""]).strip()
            )
    print(f"\n{name}, {chosen.images} images, {chosen.epochs} epochs, {chosen.seeds} seeds")
    print(f"\n| framework | {' | '.join(f'{of}, one process | {of}, mlt' for of in MODELS)} |\n|---|---|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
