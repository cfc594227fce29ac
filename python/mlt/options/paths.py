"""The paths to each peer over which packets are sprayed, and their state.

A path is a socket of its own. Paths differ in source and destination port, which switches hash; in interface; in IPv6
flow label; or in the switches to pass (SRv6). Every rank has the same number of paths, and path i of one rank connects
to path i of another. ``docs/paths.md`` advises which to use.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlt._shared import variables
from mlt._shared.addresses import is_address
from mlt._shared.counts import count_of
from mlt._shared.structured_text import SyntaxProblem, parse_yaml
from mlt._shared.text_files import UnreadableError, read_text
from mlt._shared.units import whole_number
from mlt.errors import ConfigError
from mlt.options import _plan_paths as plan_paths

if TYPE_CHECKING:
    from mlt import _core

VARIABLE = "MLT_PATHS"
MAX_PATHS = 16
MAX_SEGMENTS = 126
MAX_FLOW_LABEL = 2**20 - 1

PathSource = int | str | os.PathLike[str] | Sequence[str | Mapping[str, Any]] | Mapping[str, Any]

_FIELDS = ("address", "interface", "port", "flow_label", "segments", "segments_to")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathOptions:
    """One path. Empty fields: the rank's own address, any port, the system's flow label, no segment list.

    ``interface``: packets leave by it whatever the routes; its first address is used unless ``address`` is given.
    ``segments``: IPv6 addresses in order of travel, without the destination. ``segments_to``: other lists for some
    ranks. Raises ConfigError.
    """

    address: str = ""
    interface: str = ""
    port: int = 0
    flow_label: int = 0
    segments: tuple[str, ...] = ()
    segments_to: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.address:
            _address(self.address)
        _integer(self.port, "port", 65_535)
        _integer(self.flow_label, "flow_label", MAX_FLOW_LABEL)
        for name, segments in (("segments", self.segments), *((f"segments_to[{r}]", s) for r, s in self._lists())):
            if len(segments) > MAX_SEGMENTS:
                raise ConfigError(f"{name} has {len(segments)} addresses; a routing header has room for {MAX_SEGMENTS}")
            for segment in segments:
                if _address(segment).version != 6:
                    raise ConfigError(f"{name}: {segment!r} is not an IPv6 address, which an SRv6 segment is")
        for rank in self.segments_to:
            _integer(rank, "a rank of segments_to", 2**16 - 1)

    def _lists(self) -> list[tuple[int, tuple[str, ...]]]:
        return sorted(self.segments_to.items())

    def to_native(self) -> _core.PathOptions:
        """The options of the native library."""
        from mlt import _core

        return _core.PathOptions(
            host=self.address,
            interface=self.interface,
            udp_port=self.port,
            flow_label=self.flow_label,
            segments=list(self.segments),
            segments_to=[(rank, list(segments)) for rank, segments in self._lists()],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PathStatus:
    """State of one path to one peer.

    ``share`` (of the data now sent to the peer) and ``loss`` (an estimate) are fractions. ``rtt_us`` is measured by
    replies to data that this rank sent on the path: None before the first one, also to a peer that it only receives
    from, and again after replies moved to another path (docs/paths.md). ``silent``: the path is suspended and only
    probed; ``resting``: it is far later than others, and only probed, too. ``packets_*`` count packets of this peer.
    ``runs_*`` count system calls to all peers, successful and failed.
    """

    path: int
    local: str
    share: float
    loss: float
    rtt_us: float | None
    silent: bool
    resting: bool
    packets_sent: int
    packets_reported: int
    runs_sent: int
    runs_failed: int

    @classmethod
    def of(cls, native: _core.PathStatus) -> PathStatus:
        """The public form of a native status."""
        return cls(
            path=native.path,
            local=native.local,
            share=native.share,
            loss=native.loss,
            rtt_us=native.rtt_ns / 1_000 if native.rtt_ns else None,
            silent=native.silent,
            resting=native.resting,
            packets_sent=native.packets_sent,
            packets_reported=native.packets_reported,
            runs_sent=native.runs_sent,
            runs_failed=native.runs_failed,
        )


def resolve(
    paths: PathSource | None,
    *,
    ranks: int | None = None,
    rank: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[PathOptions, ...]:
    """The paths that ``paths`` or else MLT_PATHS describes; empty for the default, one path by the rank's own address.

    ``paths`` is one of: a number of paths, which differ by port; a sequence of addresses, interfaces or mappings with
    the fields of ``PathOptions``; a mapping with the one field ``paths``, a sequence or number as above; the name of a
    YAML file that holds any of these. A mapping with ``plan``, ``hosts`` and optionally ``job`` takes the segment lists
    of ``mlt plan``. MLT_PATHS is a number, addresses or interfaces separated by commas, or a file name. ``ranks``: size
    of the job, which limits ``segments_to``. ``rank``: rank of this process. Raises ConfigError.
    """
    where = "paths"
    if paths is None:
        paths, where = variables.text(os.environ if environ is None else environ, VARIABLE), VARIABLE
    if paths is None:
        return ()
    try:
        found = _read(paths, rank)
        for number, one in enumerate(found):
            beyond = [rank for rank in one.segments_to if ranks is not None and rank >= ranks]
            if beyond:
                raise ConfigError(
                    f"path {number}: segments_to names rank {beyond[0]}; the job has {count_of(ranks or 0, 'rank')}"
                )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return found


def _read(source: object, rank: int | None, *, from_file: bool = False) -> tuple[PathOptions, ...]:
    if isinstance(source, str | os.PathLike) and not from_file:
        return _read_text(os.fspath(source), rank)
    if isinstance(source, Mapping) and "plan" in source:
        return tuple(PathOptions(segments_to=lists) for lists in plan_paths.segments_by_path(source, rank))
    if isinstance(source, Mapping):
        if "cluster_digest" in source:
            raise ConfigError(
                "a plan alone does not say which rank is on which of its hosts. Write a paths file with two lines, "
                "'plan: FILE', which is this one, and 'hosts: [...]', the plan's host names in the order of ranks"
            )
        if set(source) != {"paths"}:
            raise ConfigError(f"a mapping has the one field 'paths', not {', '.join(map(str, source)) or 'none'}")
        source = source["paths"]
    if isinstance(source, int) and not isinstance(source, bool):
        _count(source)
        return tuple(PathOptions() for _ in range(source))
    if not isinstance(source, Sequence) or isinstance(source, str | bytes):
        raise ConfigError(f"{source!r} is not a path count, a list of paths or a file name")
    _count(len(source))
    found = []
    for number, item in enumerate(source):
        try:
            found.append(_one(item))
        except ConfigError as error:
            raise ConfigError(f"path {number}: {error}") from None
    return tuple(found)


def _read_text(text: str, rank: int | None) -> tuple[PathOptions, ...]:
    """Parse a number, a comma-separated list, or a file name."""
    if (number := whole_number(text.strip())) is not None:
        return _read(number, rank)
    if "/" in text or text.endswith((".yaml", ".yml", ".json")):
        try:
            return _read(parse_yaml(read_text(text)), rank, from_file=True)
        except UnreadableError as error:
            raise ConfigError(f"{text} cannot be read: {error.reason}") from None
        except SyntaxProblem as error:
            raise ConfigError(f"{text}: {error}") from None
        except ConfigError as error:
            raise ConfigError(f"{text}: {error}") from None
    items = [item.strip() for item in text.split(",")]
    if not all(items):
        raise ConfigError(f"{text!r} has an empty entry; write addresses or interfaces with one comma between them")
    return _read(items, rank)


def _one(item: object) -> PathOptions:
    if isinstance(item, str):
        if is_address(item):
            return PathOptions(address=item)
        return PathOptions(interface=_interface(item))
    if not isinstance(item, Mapping):
        raise ConfigError(f"{item!r} is not an address, an interface or a mapping")
    unknown = [str(name) for name in item if name not in _FIELDS]
    if unknown:
        raise ConfigError(f"{', '.join(unknown)}: unknown field; known are {', '.join(_FIELDS)}")
    lists = item.get("segments_to", {})
    if not isinstance(lists, Mapping):
        raise ConfigError(f"segments_to is {lists!r}; it is a mapping of ranks to lists of addresses")
    return PathOptions(
        address=_text(item.get("address", ""), "address"),
        interface=_interface(_text(item.get("interface", ""), "interface")),
        port=item.get("port", 0),
        flow_label=item.get("flow_label", 0),
        segments=_segments(item.get("segments", ()), "segments"),
        segments_to={rank: _segments(one, f"segments_to[{rank}]") for rank, one in lists.items()},
    )


def _segments(value: object, name: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ConfigError(f"{name} is {value!r}; it is a list of IPv6 addresses, in order of travel")
    return tuple(_text(one, name) for one in value)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} is {value!r}; it is a text")
    return value


def _count(number: int) -> None:
    if not 1 <= number <= MAX_PATHS:
        raise ConfigError(f"{number} paths; give 1 to {MAX_PATHS}")


def _integer(value: object, name: str, maximum: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= maximum:
        raise ConfigError(f"{name} is {value!r}; it is an integer from 0 to {maximum}")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise ConfigError(f"{text!r} is not an IPv4 or IPv6 address") from None


def _interface(name: str) -> str:
    known = [one for _, one in socket.if_nameindex()]
    if name and name not in known:
        raise ConfigError(
            f"{name!r} is not an address or interface of this host, which has {', '.join(known)}; a number of paths or "
            "a file would do too"
        )
    return name
