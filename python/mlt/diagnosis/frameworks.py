"""``mlt doctor --framework``: whether a framework's plugin will work here.

Imports run in a process of their own: a framework that crashes, or needs many seconds, cannot harm the examination.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata

from mlt._shared.extras import how_to_install, package_of, requirements
from mlt.diagnosis.doctor import Finding, check_library

IMPORT_SECONDS = 120
NCCL_SYMBOLS = ("ncclNetPlugin_v8", "ncclNetPlugin_v11")
# What pip installs under one name and imports under another; each provides the first.
_DISTRIBUTIONS = {"tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "tf-nightly")}
_LINE = 300


@dataclass(frozen=True)
class Framework:
    """``package``: as its extra requires it; ``module``: the plugin's. ``page``: of docs/."""

    package: str
    extra: str
    module: str
    page: str
    # Further code to run after the import: raises if something is missing. And a further examination.
    program: str = ""
    more: Callable[[Mapping[str, str]], Iterator[Finding]] | None = None
    # Packages of the extra to install, if not all.
    only: tuple[str, ...] = ()


def examine_framework(name: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about the requirements of ``name``, one of ``NAMES``, the most basic first."""
    if name in WITHOUT_PLUGIN:
        what, instead = WITHOUT_PLUGIN[name]
        yield Finding("problem", f"mlt has no plugin for {what}", instead)
        return
    yield from check_library()
    if name == "nccl":
        yield from _nccl(environ)
        return
    framework = FRAMEWORKS[name]
    version = _version_of(framework.package)
    install = how_to_install(framework.extra, *framework.only)
    if version is None:
        yield Finding("problem", f"{framework.package} is not installed", install)
        return
    minimum = _minimum(framework)
    if minimum and _numbers(version) < _numbers(minimum):
        yield Finding("problem", f"{framework.package} {version}: {framework.module} needs {minimum} or newer", install)
        return
    yield Finding("ok", f"{framework.package} {version}" + (f" ({minimum} or newer is needed)" if minimum else ""))
    yield from _imports(framework)
    if framework.more is not None:
        yield from framework.more(environ)
    yield Finding("ok", f"how to use it: docs/{framework.page}")


def _imports(framework: Framework) -> Iterator[Finding]:
    words = [sys.executable, "-c", f"import {framework.module}\n{framework.program}"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield Finding(
            "problem", f"import {framework.module} takes longer than {IMPORT_SECONDS} s", f"python -c '{words[-1]}'"
        )
        return
    if done.returncode == 0:
        yield Finding("ok", f"import {framework.module} works")
        return
    lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"status {done.returncode}"]
    what = f"signal {-done.returncode}" if done.returncode < 0 else lines[-1][:_LINE]
    yield Finding(
        "problem", f"import {framework.module} fails: {what}",
        f"see all of the error with: python -c 'import {framework.module}'",
    )  # fmt: skip


def _torch(environ: Mapping[str, str]) -> Iterator[Finding]:
    found = [one for one in metadata.entry_points(group="torch.backends") if one.value.startswith("mlt.")]
    if not found:
        yield Finding(
            "problem", 'mlt\'s entry point of torch.backends is missing: import torch does not register "mlt"',
            "install mlt again, or write import mlt.torch in the script",
        )  # fmt: skip
    elif environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0":
        yield Finding(
            "optional", 'TORCH_DEVICE_BACKEND_AUTOLOAD is 0: import torch does not register the backend "mlt"',
            "unset it, or write import mlt.torch in the script",
        )  # fmt: skip
    else:
        yield Finding("ok", 'import torch registers the backend "mlt" (entry point of torch.backends)')


def _keras(environ: Mapping[str, str]) -> Iterator[Finding]:
    backend = environ.get("KERAS_BACKEND", "tensorflow")
    if backend != "tensorflow":
        yield Finding(
            "problem", f"KERAS_BACKEND is {backend!r}: mlt.tensorflow needs Keras on TensorFlow",
            "export KERAS_BACKEND=tensorflow",
        )  # fmt: skip


def _nccl(environ: Mapping[str, str]) -> Iterator[Finding]:
    """NCCL itself comes with the framework that uses it."""
    from mlt import nccl

    library = nccl.library()
    if not library.is_file():
        yield Finding(
            "problem", f"NCCL's plugin is not at {library}", "install mlt again, from its wheel or its checkout"
        )
        return
    yield Finding("ok", f"NCCL's plugin is {library}")
    program = (
        "import ctypes, sys\nloaded = ctypes.CDLL(sys.argv[1])\n"
        "print(*(name for name in sys.argv[2:] if not hasattr(loaded, name)))"
    )
    words = [sys.executable, "-c", program, str(library), *NCCL_SYMBOLS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=IMPORT_SECONDS, check=False)
    lacking = done.stdout.split()
    if done.returncode != 0 or lacking:
        last = (done.stderr.strip().splitlines() or [f"signal {-done.returncode}"])[-1][:_LINE]
        what = f"it has no symbol {', '.join(lacking)}" if lacking else f"it does not load: {last}"
        yield Finding("problem", f"NCCL's plugin: {what}", "install mlt again, from its wheel or its checkout")
        return
    yield Finding("ok", f"NCCL's plugin loads, with {' and '.join(NCCL_SYMBOLS)}")
    if nccl.is_wanted(environ):
        yield Finding("ok", f"{nccl.VARIABLE} selects it")
    else:
        yield Finding("optional", f"{nccl.VARIABLE} does not select it", f"export {nccl.VARIABLE}=mlt")
    paths = environ.get("LD_LIBRARY_PATH", "").split(":")
    if _version_of("torch") is None and str(library.parent) not in paths:
        yield Finding(
            "optional", "NCCL finds it only by LD_LIBRARY_PATH here: torch, which would load it, is not installed",
            f"export LD_LIBRARY_PATH={library.parent}:$LD_LIBRARY_PATH",
        )  # fmt: skip
    yield Finding("ok", "how to use it: docs/nccl.md")


def _version_of(package: str) -> str | None:
    for name in _DISTRIBUTIONS.get(package, (package,)):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _minimum(framework: Framework) -> str:
    """The version that mlt's own metadata requires; empty if mlt is imported from a folder."""
    try:
        wanted = requirements().get(framework.extra, ())
    except metadata.PackageNotFoundError:
        return ""
    for one in wanted:
        if package_of(one) == framework.package and (found := re.search(r">=([0-9.]+)", one)):
            return found[1]
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    """(2, 13, 0) of 2.13.0+cpu."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


_REGISTERED = "import torch.distributed\nassert 'mlt' in torch.distributed.Backend.backend_list, 'no backend mlt'"
FRAMEWORKS: dict[str, Framework] = {
    "torch": Framework("torch", "torch", "mlt.torch", "pytorch.md", _REGISTERED, _torch),
    "tensorflow": Framework("tensorflow", "tensorflow", "mlt.tensorflow", "tensorflow.md"),
    "keras": Framework("tensorflow", "tensorflow", "mlt.tensorflow.keras", "tensorflow.md", more=_keras),
    "mxnet": Framework("mxnet", "mxnet", "mlt.mxnet", "mxnet.md"),
    "horovod": Framework("torch", "torch", "mlt.torch.horovod", "horovod.md"),
    "byteps": Framework("torch", "torch", "mlt.torch.byteps", "horovod.md"),
    "torchft": Framework("torchft", "recipes", "mlt.torch.torchft", "pytorch.md", only=("torchft",)),
    # Over torch's backend.
    **{
        name: Framework(name, "recipes", "mlt.torch", "pytorch.md", _REGISTERED, _torch, (name,))
        for name in ("accelerate", "deepspeed", "lightning", "transformers")
    },
    "ray": Framework("ray", "recipes-ray", "mlt.torch", "pytorch.md", _REGISTERED, _torch, ("ray",)),
}
# Name -> what it is, and what to do instead.
WITHOUT_PLUGIN: dict[str, tuple[str, str]] = {
    "jax": ("JAX", "average its arrays with mlt.Context.all_reduce"),
}
NAMES = (*FRAMEWORKS, "nccl", *WITHOUT_PLUGIN)
