"""The command that installs what an extra of mlt requires, for errors about a missing package.

mlt is on no package index. ``pip install '.[plan]'`` works in a checkout only, and compiles mlt again. ``pip install
'mlt[plan]'`` works only where mlt is installed: anywhere else, or if the extra conflicts with an installed package, pip
looks for another project of that name. So the command names the packages themselves, from the metadata of the installed
distribution, and the pip of this interpreter: it works for a wheel and for a checkout, and in any environment.
"""

from __future__ import annotations

import re
import shutil
import sys
from importlib import import_module, metadata
from pathlib import Path

# Extras whose packages do not go with newer ones that other extras need.
_ALONE = frozenset({"mxnet"})
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")


def requirements() -> dict[str, tuple[str, ...]]:
    """Extra -> its requirements, as pip takes them; from the metadata of the installed distribution.

    Raises:
        metadata.PackageNotFoundError: mlt is imported from a folder and has no metadata.
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in metadata.requires("mlt") or []:
        requirement, _, marker = text.partition(";")
        if (extra := _EXTRA.search(marker)) is not None:
            found[extra[1]] = (*found.get(extra[1], ()), "".join(requirement.split()))
    return found


def package_of(requirement: str) -> str:
    """The package's name in a requirement: ``scipy`` in ``scipy>=1.10``."""
    return re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]


def how_to_install(extra: str, *packages: str) -> str:
    """The command that installs the packages of ``extra``, or of these only ``packages``.

    A comment names the extra, and says so where it needs an environment of its own.

    >>> how_to_install("perf")
    "pip install 'matplotlib>=3.7' 'mpi4py>=4' # extra perf"
    """
    try:
        wanted = requirements()[extra]
    except metadata.PackageNotFoundError:
        return f"{pip()} install '{checkout()}[{extra}]'"
    chosen = [f"'{one}'" for one in wanted if not packages or package_of(one) in packages]
    assert chosen, f"extra {extra} has none of {packages}"
    where = ", in an environment of its own" if extra in _ALONE else ""
    return f"{pip()} install {' '.join(chosen)} # extra {extra}{where}"


def require(module: str, what: str, product: str, extra: str, *packages: str) -> None:
    """Import a package that ``what`` needs; raises ModuleNotFoundError with the command that installs it.

    ``product``: its name in the error; ``extra`` and ``packages``: as of ``how_to_install``. Where something is missing
    that the package itself needs, that error stands.
    """
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        text = f"{what} needs {product}, which is not installed: {how_to_install(extra, *packages)}"
        raise ModuleNotFoundError(text, name=module) from None


def checkout() -> Path:
    """The checkout that this module is imported from; meaningless in an installation."""
    return Path(__file__).resolve().parents[3]


def pip() -> str:
    """``pip``, or, if that word runs the pip of another environment or nothing, this interpreter's module."""
    found = shutil.which("pip")
    here = Path(sys.executable)
    return "pip" if found is not None and Path(found).parent == here.parent else f"{here} -m pip"
