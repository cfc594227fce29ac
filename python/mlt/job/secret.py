"""The job's secret: its sources, where it is required, and its proof over lines of JSON.

A secret never appears in a text, a log or a ``repr``. The native library has the same proof on control connections
(PROTOCOL 3.8); rendezvous and ``mlt perf`` use this one.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from mlt._shared import variables
from mlt._shared.text_files import read_input
from mlt.errors import ConfigError
from mlt.job import interfaces

VARIABLE = "MLT_JOB_SECRET"
FILE_VARIABLE = "MLT_JOB_SECRET_FILE"
INSECURE_VARIABLE = "MLT_INSECURE"
MIN_BYTES = 16
# A larger file is not a secret.
MAX_BYTES = 4_096
NONCE_BYTES = PROOF_BYTES = 32
WAYS_OUT = (
    f"give all processes of the job the same secret ({VARIABLE}, or {FILE_VARIABLE}; `mlt launch` makes one; see "
    f"docs/security.md), or allow the job without one ({INSECURE_VARIABLE}=1)"
)

_warned = False


class JobSecret:
    """At least 16 bytes, known to the processes of a job only. Never shows its content.

    Raises ConfigError for a shorter secret, and for one repeated byte.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str | bytes, *, source: str = "secret") -> None:
        try:
            # As ``os.environ`` decoded it: a variable may hold any bytes.
            content = value.encode(errors="surrogateescape") if isinstance(value, str) else bytes(value)
        except UnicodeEncodeError:
            content = None  # the text and cause of the error would show parts of it
        if content is None:
            raise ConfigError(f"the job secret ({source}) is not valid Unicode: make one with `openssl rand -hex 32`")
        if not MIN_BYTES <= len(content) <= MAX_BYTES:
            raise ConfigError(
                f"the job secret ({source}) has {len(content)} bytes; {MIN_BYTES} to {MAX_BYTES} are required: make "
                "one with `openssl rand -hex 32`"
            )
        if len(set(content)) == 1:
            raise ConfigError(
                f"the job secret ({source}) is one repeated byte: make a random one with `openssl rand -hex 32`"
            )
        self._value = content

    @classmethod
    def from_file(cls, path: str | Path, *, source: str = "secret") -> JobSecret:
        """The content of a file, without the newline at its end.

        Raises ConfigError if the file is readable or writable for other users, or owned by one, who could have created
        it.
        """

        def check(found: os.stat_result) -> None:
            mode = found.st_mode
            if stat.S_ISREG(mode) and found.st_uid not in (0, os.geteuid()):
                raise ConfigError(
                    f"the job secret's file {path} ({source}) belongs to another user (uid {found.st_uid}; this "
                    f"process is {os.geteuid()}): chown it to this user or to root, and make a new secret if the "
                    "other user must not know it"
                )
            if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise ConfigError(
                    f"the job secret's file {path} ({source}) is accessible to other users (mode "
                    f"{mode & 0o777:03o}): chmod 600 {path}, and make a new secret if others could read it"
                )

        try:
            content = read_input(path, MAX_BYTES + 2, check)
        except OSError as error:
            raise ConfigError(
                f"the job secret's file {path} ({source}) cannot be read: {error.strerror or error}; "
                "check the path, and make one with `openssl rand -hex 32`, mode 600"
            ) from None
        return cls(content.removesuffix(b"\n").removesuffix(b"\r"), source=f"{source} {path}")

    def reveal(self) -> bytes:
        """The secret itself, for the native library."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobSecret) and hmac.compare_digest(self._value, other._value)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return "<JobSecret>"


def resolve(given: str | bytes | JobSecret | None, environ: Mapping[str, str] | None = None) -> JobSecret | None:
    """``given``, else MLT_JOB_SECRET, else the content of the file named by MLT_JOB_SECRET_FILE, else None.

    Raises ConfigError.
    """
    env = os.environ if environ is None else environ
    if given is not None:
        return given if isinstance(given, JobSecret) else JobSecret(given, source="secret=")
    value, path = env.get(VARIABLE), env.get(FILE_VARIABLE)
    if value and path:
        raise ConfigError(f"{VARIABLE} and {FILE_VARIABLE} are both set; keep one of them")
    if value:
        return JobSecret(value, source=VARIABLE)
    return JobSecret.from_file(path, source=FILE_VARIABLE) if path else None


def is_insecure(environ: Mapping[str, str] | None = None) -> bool:
    """Whether MLT_INSECURE permits jobs without a secret. Raises ConfigError if it is neither 0 nor 1."""
    return variables.flag(os.environ if environ is None else environ, INSECURE_VARIABLE)


def require(secret: JobSecret | None, insecure: bool, address: str, purpose: str) -> None:
    """Reject to ``purpose`` ("rank 0 listens at") the numeric ``address`` without a secret unless it is loopback.

    Raises ConfigError that names both remedies. If ``insecure`` permits it, warns once on stderr.
    """
    if secret is not None or interfaces.is_loopback(address):
        return
    if not insecure:
        raise ConfigError(
            f"{purpose} {address}, which is not a loopback address, without a job secret: any host that reaches it "
            f"could join the job, read its tensors and change them; {WAYS_OUT}"
        )
    global _warned
    if not _warned:
        _warned = True
        print(
            f"mlt: WARNING: {INSECURE_VARIABLE}=1: this job has no secret; any host that reaches {address} can join "
            "it, read its tensors and change them",
            file=sys.stderr,
            flush=True,
        )


def own_secret(environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that passes a new secret to the processes of a job started by this one; empty if ``environ`` has one
    for them to inherit."""
    return {} if environ.get(VARIABLE) or environ.get(FILE_VARIABLE) else {VARIABLE: secrets.token_hex(32)}


def root_key(secret: JobSecret | None) -> bytes:
    """The key of proofs (PROTOCOL 3.8.12). A hash of the secret and its length, because HMAC pads a short key with
    zeros: a secret and the same with an appended zero byte would be one key."""
    content = b"" if secret is None else secret.reveal()
    return hashlib.sha256(b"mlt secret" + len(content).to_bytes(8, "little") + content).digest()


class Prover:
    """One side of a challenge over lines of text. ``purpose``: what the proof is for; ``role``: "caller" or "host".

    The caller opens with its nonce; the host replies with its own and a proof; every later line in either direction has
    a proof over both nonces and the line.
    """

    def __init__(self, secret: JobSecret | None, purpose: str, *, role: str) -> None:
        self._key = hmac.digest(root_key(secret), b"mlt " + purpose.encode(), "sha256")
        self._role = role
        self.nonce = secrets.token_hex(NONCE_BYTES)
        self._transcript = b""

    def meet(self, other_nonce: str) -> bool:
        """Set the other side's nonce; False if it is invalid."""
        with contextlib.suppress(ValueError):
            other = bytes.fromhex(other_nonce)
            if len(other) == NONCE_BYTES and len(other_nonce) == 2 * NONCE_BYTES:
                own = bytes.fromhex(self.nonce)
                self._transcript = own + other if self._role == "caller" else other + own
                return True
        return False

    def _digest(self, role: str, content: str) -> str:
        assert self._transcript
        covered = role.encode() + b"\0" + self._transcript + content.encode(errors="surrogatepass")
        return hmac.new(self._key, covered, hashlib.sha256).hexdigest()

    def prove(self, content: str = "") -> str:
        """This side's proof of ``content``."""
        return self._digest(self._role, content)

    def check(self, proof: object, content: str = "") -> bool:
        """Whether ``proof`` is the other side's proof of ``content``; compared in constant time."""
        other = "host" if self._role == "caller" else "caller"
        expected = self._digest(other, content)
        return isinstance(proof, str) and hmac.compare_digest(expected.encode(), proof.encode(errors="replace"))
