"""``mlt doctor``: what this machine lacks for mlt, and the command that fixes it."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from mlt.doctor import examine

_MARKS = {"ok": "ok       ", "problem": "PROBLEM  ", "optional": "optional "}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def app(as_json: bool) -> None:
    """Check the library, the interface that would be used, socket buffers, offloads, and what the testbed needs.

    Changes nothing. Ends with 1 if there is a problem; what only some commands need ("optional") is none.
    """
    findings = examine()
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            click.echo(_MARKS[finding.level] + finding.what)
            if finding.fix:
                click.echo(f"         -> {finding.fix}")
    raise SystemExit(1 if any(finding.level == "problem" for finding in findings) else 0)
