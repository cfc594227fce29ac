"""The client's side of ``mlt.job.handshake_server``: small, because every rank imports it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from mlt._shared.json_lines import quoted
from mlt.job.secret import JobSecret, Prover


class HandshakeError(Exception):
    """The listening process is not the expected service. ``message``: its first line, if that was a message;
    ``version``: its version, if it differs; ``unproved``: it has another secret."""

    def __init__(
        self, text: str, *, message: dict[str, Any] | None = None, version: int | None = None, unproved: bool = False
    ) -> None:
        super().__init__(text)
        self.message = message
        self.version = version
        self.unproved = unproved


def handshake(
    name: str,
    version: int,
    secret: JobSecret | None,
    say: Callable[[dict[str, Any]], None],
    hear: Callable[[], dict[str, Any]],
) -> Prover:
    """The client's side, over ``say`` and ``hear``: open, and have the host prove itself. Raises HandshakeError."""
    prover = Prover(secret, name, role="caller")
    key = f"mlt_{name}"
    say({key: version, "nonce": prover.nonce})
    answer = hear()
    found = answer.get(key)
    if type(found) is int and found != version:
        raise HandshakeError(
            f"it has version {quoted(found)} of {name}, this side {version}", message=answer, version=found
        )
    if found != version or not prover.meet(str(answer.get("nonce"))):
        raise HandshakeError("it gave no proof", message=answer)
    if not prover.check(answer.get("proof")):
        raise HandshakeError("it did not prove that it knows the job's secret", message=answer, unproved=True)
    return prover


def proved(prover: Prover, message: Any) -> dict[str, Any]:
    """``message`` with its proof."""
    content = json.dumps(message, separators=(",", ":"))
    return {"content": content, "proof": prover.prove(content)}
