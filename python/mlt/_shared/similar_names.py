"""The name that a wrong one may mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """The known names that a wrong one may mean: those that it abbreviates, else the most similar one.

    Dashes before them and the case of letters do not count.

    >>> nearest("--fram", ["--framework", "--fix"]), nearest("Glo", ["tcp", "gloo"]), nearest("x", ["tcp"])
    (['--framework'], ['gloo'], [])
    """
    bare = {one.lstrip("-").lower(): one for one in known}
    wanted = name.lstrip("-").lower()
    begun = [one for one in bare if wanted and one.startswith(wanted)]
    return [bare[one] for one in begun or get_close_matches(wanted, bare, n=1, cutoff=0.7)]


def did_you_mean(name: str, known: Sequence[str], *, before: str = "; ") -> str:
    """The end of an error about ``name`` that follows the list of known names, or nothing where it is like none.

    >>> did_you_mean("glo", ["tcp", "gloo"]), did_you_mean("tensor", ["tcp", "gloo"])
    ("; did you mean 'gloo'?", '')
    """
    found = nearest(name, known)
    return f"{before}did you mean {' or '.join(map(repr, found))}?" if found else ""
