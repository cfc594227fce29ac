"""``--ports`` of the commands of ``mlt switch``."""

from __future__ import annotations

from mlt.switch_configs.policy import expand_ports


def ports_of(text: str) -> tuple[str, ...]:
    """The ports that the option names. Raises ValueError that names the option."""
    try:
        return expand_ports(tuple(text.split(",")))
    except ValueError as error:
        raise ValueError(f"--ports {text}: {error}") from None
