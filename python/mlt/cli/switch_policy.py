"""``mlt switch policy``: a policy derived from a model's layers, with what its thresholds are predicted to lose."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from mlt._shared.counts import count_of
from mlt._shared.units import format_size
from mlt.cli.click_style import Command
from mlt.cli.layout import print_lines
from mlt.cli.output import Output
from mlt.cli.output_option import TEXT_FILE
from mlt.cli.style import is_stdout, show_error, status_of, write_output
from mlt.cli.switch_options import PORTS_HELP, ports_of
from mlt.cli.unit_option import RATE, SIZE, UnitOption
from mlt.simulation.switch_port import simulate
from mlt.switch_configs.derive import Derived, policy_of, problem_of
from mlt.switch_configs.errors import SwitchConfigError
from mlt.switch_configs.model_layers import load_layers
from mlt.switch_configs.policy import Switch, dump
from mlt.switch_configs.semantics import require_sound
from mlt.switch_configs.threshold_check import in_one_step, parameters
from mlt.switch_configs.thresholds import ModelOptions, Problem

_SIZE = UnitOption(SIZE, minimum=1, whole=True)
_WIDTH = 100  # of the table where standard error is no terminal
_NETWORK_PACKETS = 2_000_000  # for the network simulator: a quarter of a second


@click.command(cls=Command)
@click.option("--layers", type=click.Path(path_type=Path), required=True, help="Layers of the model (JSON).")
@click.option("--queues", type=click.IntRange(3, 8), default=8, show_default=True, help="Queues per port.")
@click.option("--buffer", "buffer_bytes", type=_SIZE, required=True, help="Shared buffer of the switch.")
@click.option(
    "--rate",
    "link_rate",
    type=UnitOption(RATE, minimum=1, whole=True),
    required=True,
    help="Rate of a port, for example 100gbit.",
)
@click.option(
    "--packet-bytes",
    type=UnitOption(SIZE, minimum=64, whole=True),
    default=1500,
    show_default=True,
    help="Largest packet size.",
)
@click.option("--ports", metavar="PORTS", required=True, help=PORTS_HELP)
@click.option(
    "--load", type=float, default=1.0, show_default=True, help="Arrival rate of the data over the port's rate."
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of synchronous workers that share a port.",
)
@click.option(
    "--paths",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of a worker's paths that end at the port.",
)
@click.option(
    "--burst-packets",
    type=click.IntRange(min=1),
    help="Packets that a host sends back to back on a path.",
    show_default="64 KiB, one system call",
)
@click.option("--small-ratio", type=float, default=0.5, show_default=True, help="Share of small gradients (theta).")
@click.option(
    "--granularity",
    "granularity_bytes",
    type=_SIZE,
    default=36864,
    show_default=True,
    help="Step size of both thresholds (S and L).",
)
@click.option(
    "--model", type=click.Choice(["shared", "split"]), default="shared", show_default=True, help="Loss model."
)
@click.option(
    "--losses/--no-losses", default=None, help="Print predicted losses.", show_default="unless -o names a file"
)
@click.option("--output", "-o", metavar="FILE|-", type=TEXT_FILE,
              default=Path("-"), help="Policy file to write; -: standard output.")  # fmt: skip
def policy(
    layers: Path,
    queues: int,
    buffer_bytes: int,
    link_rate: int,
    packet_bytes: int,
    ports: str,
    losses: bool | None,
    output: Path,
    **options: Any,
) -> None:
    """Derive a policy from a model: classes, code points, and the thresholds that cost the fewest extra rounds.

    No threshold is below the bytes that WORKERS send at once. With --losses the predicted losses go to standard error,
    beside those of a packet simulation of the same bursts and those of mlt's network simulator. A load at which a class
    starves is rejected. Details: docs/switch-thresholds.md.
    """
    try:
        switch = Switch(
            queues=queues,
            shared_buffer_bytes=buffer_bytes,
            link_rate_bits_per_second=link_rate,
            packet_bytes=packet_bytes,
            ports=ports_of(ports),
        )
        problem = problem_of(load_layers(layers), switch, ModelOptions(**options))
        together = (
            f"{count_of(problem.workers, 'worker')} in step, {count_of(problem.run_packets, 'packet')} each on "
            f"{count_of(problem.paths, 'path')}"
        )
        description = f"derived from {layers.name} at load {problem.load}, {together}"
        derived = policy_of(problem, switch, description=description)
        require_sound(derived.policy, source=str(layers))
        if not is_stdout(output):
            write_output(output, dump(derived.policy))
    except (SwitchConfigError, ValueError, OSError) as error:
        show_error(error)
        raise SystemExit(status_of(error)) from error
    if losses is None:
        losses = is_stdout(output)
    if losses:
        _show_predictions(problem, derived)
        floor = f"no S is below {format_size(problem.floor_bytes)}"
        print_lines(f"{count_of(problem.group_packets, 'packet')} at once ({together}): {floor}", err=True)
        print_lines(_one_step(problem, derived), err=True)
    if is_stdout(output):
        click.echo(dump(derived.policy), nl=False)


def _show_predictions(problem: Problem, derived: Derived) -> None:
    """Print two rows per class, for its small and its large gradients: the queue above which they are dropped; losses
    by the model, the simulated queue and the network simulator. The error is the larger of the model's differences to
    the simulated queue."""
    table = Table("class", "load", "gradients", "dropped above", "model", "simulated", "network", "error")
    network = simulate(
        parameters(problem, derived.rows),
        packets=_NETWORK_PACKETS,
        seed=1,
        burst=problem.group_packets,
        senders=min(problem.workers, 256),
        packet_bytes=problem.packet_bytes,
    )
    for data, row, check, seen in zip(derived.policy.data, derived.rows, derived.checked, network, strict=True):
        found = [[f"{one.small:.2e}", f"{one.large:.2e}"] for one in (check.simulated, seen)]
        error = f"{check.error:.3f}"
        if not check.enough:
            found, error = [["too few:", count_of(check.bursts, "burst")], ["", ""]], "?"
        simulated, networked = found
        threshold, limit = f"S = {format_size(row.threshold_bytes)}", f"L = {format_size(row.limit_bytes)}"
        small, large = f"{row.small_loss:.2e}", f"{row.large_loss:.2e}"
        table.add_row(data.name, f"{row.load:.3g}", "small", threshold, small, simulated[0], networked[0], error)
        table.add_row("", "", "large", limit, large, simulated[1], networked[1], "")
    Output(stderr=True, width=None if sys.stderr.isatty() else _WIDTH).print_table(table)


def _one_step(problem: Problem, derived: Derived) -> str:
    lost = in_one_step(problem, derived.rows)
    small, large = ([getattr(entry, kind) for entry in lost] for kind in ("small", "large"))
    return (
        f"if {count_of(problem.workers, 'worker')} sent a whole step at the port's rate, without rate control, classes "
        f"would lose {min(small):.0%} to {max(small):.0%} of their small gradients and {min(large):.1%} to "
        f"{max(large):.1%} of the large (simulated; no threshold prevents that)"
    )
