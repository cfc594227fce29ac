"""Code shared by the ``mlt plan`` commands: the plan file that they extend, and reports of what they cannot do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import typer

from mlt._shared.extras import how_to_install
from mlt.cli.ending import FAILED, USAGE
from mlt.cli.style import is_stdout, show_problem, status_of, text_beside
from mlt.planners._shared.documents import InputError
from mlt.planners.cluster import Cluster
from mlt.planners.plan import InfeasibleError, Plan, new_plan, read_plan
from mlt.planners.psnet.checks import TopologyError


@contextmanager
def refusals(source: Path | None = None, out: Path | None = None) -> Iterator[None]:
    """Report an error as text: exit status 2 for invalid input or files, 1 for what cannot be planned here.

    ``source``: the file that errors without one are about. ``out``: the output file, beside which text is printed.
    """
    try:
        with text_beside(out):
            yield
    except InputError as error:
        where = "" if source is None or error.source else f"{source}: "
        problems = "\nerror: ".join(str(error).splitlines())
        show_problem(f"{where}{problems}", is_usage=True)
        raise typer.Exit(USAGE) from None
    except ImportError as error:
        if str(error.name).startswith("mlt"):  # not a missing extra but a broken installation
            raise
        typer.echo(f"error: this needs {error.name}, which is not installed: {how_to_install('plan')}", err=True)
        raise typer.Exit(FAILED) from None
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk; paths were checked before
        typer.echo(f"error: {error.filename}: cannot be written: {error.strerror}", err=True)
        raise typer.Exit(status_of(error)) from None
    except TopologyError as error:
        show_problem(str(error), is_usage=True)
        raise typer.Exit(USAGE) from None
    except (InfeasibleError, ValueError) as error:
        show_problem(str(error), is_usage=False)
        raise typer.Exit(FAILED) from None


def plan_to_extend(cluster: Cluster, out: Path | None, *, seed: int = 0) -> Plan:
    """The existing plan in ``out`` if it was made for this cluster, else an empty one.

    Raises:
        InputError: ``out`` contains something else, which is not overwritten.
    """
    if out is None or is_stdout(out) or not out.exists():
        return new_plan(cluster, seed=seed)
    return plan_of(cluster, out, advice="name another -o FILE, or remove this one")


def plan_of(cluster: Cluster, file: Path, *, advice: str = "give its own cluster file, or plan again") -> Plan:
    """The plan in ``file``, made for this cluster. Raises InputError, which ends with ``advice``, for any other."""
    plan = read_plan(file)
    problems = plan.mismatches(cluster)
    if problems:
        last = problems[-1]
        raise InputError([*problems[:-1], replace(last, message=f"{last.message}; {advice}")], source=str(file))
    return plan
