"""The checks of ``mlt doctor HOST``, the most basic first; each finding includes its remedy."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mlt import __version__
from mlt._shared.counts import count_of
from mlt.diagnosis import path_mtu
from mlt.diagnosis.datagrams import HEADER, MAX_DATAGRAM, MIN_PACKET, Sent, Tally
from mlt.diagnosis.doctor import Finding
from mlt.diagnosis.path_mtu import Attempt, PathMtu
from mlt.diagnosis.session import Echoes, Session
from mlt.options.qos import DscpMap

NOT_ECT, ECT_0, CE = 0, 2, 3
COPIES = 6
LOSS_COUNT, LOSS_INTERVAL = 300, 0.001
SMALL = 64
# Max loss of single datagrams at a low rate: a higher one is a fault, a lower one may be chance.
PROBLEM_LOSS = 0.01
# mlt's own header (PROTOCOL 4.4), and the granularity of segments.
SEGMENT_HEADER, SEGMENT_UNIT = 40, 8

Exchange = Callable[..., tuple[Sent, Tally]]


@dataclass(frozen=True)
class _Way:
    """One direction. ``words``: "to 10.0.0.2" or "back from 10.0.0.2"."""

    words: str
    exchange: Exchange
    sender_mtu: int


class Examination:
    """Runs the checks over a session, one after another."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._here, self._there = session.hello, session.there
        peer = session.remote_address
        self._to = _Way(f"to {peer}", session.there_and_counted, self._here.mtu)
        self._back = _Way(f"back from {peer}", session.back_and_counted, self._there.mtu)
        self._wait = 0.25
        self._packet = MIN_PACKET[session.port.family]

    def findings(self) -> Iterator[Finding]:
        """All findings; stops early if further checks cannot work."""
        here, there, session = self._here, self._there, self._session
        yield Finding(
            "ok",
            f"TCP to {session.remote_address} ({there.interface}, MTU {there.mtu}) from {session.local_address} "
            f"({here.interface}, MTU {here.mtu})",
        )
        yield from self._versions()
        yield from self._maps()
        yield from self._buffers()
        ways = []
        for way in (self._to, self._back):
            blocked = self._blocked(way)
            if blocked is None:
                ways.append(way)
                yield Finding("ok", f"UDP arrives, {way.words}")
            else:
                yield blocked
        if ways == [self._to, self._back]:
            self._learn_round_trip()
        if ways:
            yield from self._path_mtus(ways)
        for way in ways:
            yield from self._code_points(way)
        if len(ways) == 2:
            yield from self._losses()

    def _versions(self) -> Iterator[Finding]:
        here, there = self._here, self._there
        if here.protocol is not None and there.protocol is not None and here.protocol != there.protocol:
            older = "here" if here.protocol < there.protocol else "there"
            yield Finding(
                "problem",
                f"protocol versions differ: {here.protocol} here (mlt {here.package}), {there.protocol} there (mlt "
                f"{there.package}); ranks reject each other",
                f"install the newer mlt {older} from its wheel or checkout",
            )
        elif here.package != there.package:
            yield Finding(
                "optional",
                f"mlt {here.package} here, {there.package} there; both speak protocol {here.protocol or 'unknown'}",
                "install the same mlt on both",
            )
        elif there.protocol is None:
            yield Finding("problem", "the native library does not load there", "run mlt doctor there, without a HOST")
        else:
            yield Finding("ok", f"mlt {__version__} and protocol {there.protocol} on both sides")

    def _maps(self) -> Iterator[Finding]:
        here, there = self._here.dscp, self._there.dscp
        if here == there:
            yield Finding("ok", f"the same DSCPs on both sides: {here}")
        else:
            yield Finding(
                "problem",
                f"DSCPs differ: {here} here; {there} there; ranks reject each other",
                "export MLT_QOS_POLICY=<the same policy file> on both sides",
            )

    def _buffers(self) -> Iterator[Finding]:
        for where, side in (("here", self._here), ("there", self._there)):
            if side.buffer >= side.wanted_buffer:
                yield Finding("ok", f"UDP receive buffer of {side.buffer >> 10} KiB {where}")
            else:
                yield Finding(
                    "problem",
                    f"UDP receive buffer of {side.buffer >> 10} KiB {where}; mlt asks for {side.wanted_buffer >> 10} "
                    "KiB: bursts are lost",
                    f"sudo sysctl -w net.core.rmem_max={side.wanted_buffer} net.core.wmem_max={side.wanted_buffer}",
                )

    def _blocked(self, way: _Way) -> Finding | None:
        """None if datagrams arrive."""
        for _ in range(2):
            sent, tally = way.exchange(COPIES, SMALL, 0, minimum=1, wait=0.5)
            if tally.received:
                return None
        if sent.count == 0:
            why = os.strerror(sent.error)
            whose = "here" if way is self._to else "there"
            if sent.error in (errno.EPERM, errno.EACCES):
                return Finding(
                    "problem",
                    f"no UDP {way.words}: the packet filter {whose} blocks sending ({why})",
                    f"let UDP out {whose}: nft list ruleset, iptables -L OUTPUT",
                )
            return Finding("problem", f"no UDP {way.words}: {why}", f"look at the routes {whose}: ip route get")
        return Finding(
            "problem",
            f"no UDP {way.words}: {2 * COPIES} datagrams sent, none arrived, though TCP does",
            "let UDP through between the hosts, all ports from 1024: a firewall or security group blocks it",
        )

    def _learn_round_trip(self) -> None:
        echoes = self._session.echoes(20, SMALL, 0, interval=0.001, wait=0.5)
        if echoes.seconds:
            self._wait = min(max(0.15, 4 * echoes.seconds[-1]), 1.5)

    # ---- path MTU ----

    def _path_mtus(self, ways: list[_Way]) -> Iterator[Finding]:
        overhead = self._session.port.overhead
        here, there = self._here, self._there
        largest = MAX_DATAGRAM + overhead
        usable = min(here.mtu, there.mtu, largest)
        found = [(way, self._path_mtu(way)) for way in ways]
        self._packet = min([usable, *(one.packet for _, one in found if one.packet)])
        segment = max((self._packet - overhead - SEGMENT_HEADER) // SEGMENT_UNIT * SEGMENT_UNIT, SEGMENT_UNIT)
        if here.mtu != there.mtu:
            passing = ", ".join(f"{one.packet} bytes {way.words}" for way, one in found)
            larger, where = (here, "here") if here.mtu > there.mtu else (there, "there")
            yield Finding(
                "problem",
                f"MTU mismatch: {here.interface} has {here.mtu} here, {there.interface} {there.mtu} there; packets "
                f"arrive up to {passing}",
                f"sudo ip link set {larger.interface} mtu {usable} {where}; or {larger.mtu} on the other host too, and "
                "on every switch between them",
            )
        for way, one in found:
            if one.packet >= usable:
                if here.mtu == there.mtu:
                    yield Finding("ok", f"packets of {one.packet} bytes arrive whole, {way.words}")
            elif one.packet == 0:
                yield Finding(
                    "problem",
                    f"not even packets of {MIN_PACKET[self._session.port.family]} bytes arrive, {way.words}",
                    "look for a link that loses nearly everything, or a filter by size",
                )
            else:
                says = (
                    f"reported by {one.by} (ICMP)"
                    if one.by
                    else "larger ones are dropped without an ICMP message (MTU black hole)"
                )
                yield Finding(
                    "problem",
                    f"the path {way.words} carries packets of up to {one.packet} bytes, and the interfaces have "
                    f"{usable}: {says}",
                    f"raise the MTU of the hop in between, or give every rank Context(segment_bytes={segment})",
                )

    def _path_mtu(self, way: _Way) -> PathMtu:
        overhead = self._session.port.overhead

        def attempt(packet: int) -> Attempt:
            said, by = 0, ""
            for _ in range(2):  # a lossy path may lose four in a row
                sent, tally = way.exchange(4, max(packet - overhead, HEADER.size), 0, minimum=1, wait=self._wait)
                said, by = sent.mtu or said, sent.by or by
                if tally.received:
                    return Attempt(True)
                if said:
                    break
            return Attempt(False, said, by)

        minimum = MIN_PACKET[self._session.port.family]
        other = min(self._here.mtu, self._there.mtu)
        return path_mtu.find(attempt, minimum, min(way.sender_mtu, MAX_DATAGRAM + overhead), other)

    # ---- DSCP and ECN ----

    def _code_points(self, way: _Way) -> Iterator[Finding]:
        bleached, changed, cleared, lost = [], [], [], []
        for name, dscp, ecn in _marks(self._here.dscp):
            wanted = dscp << 2 | ecn
            _, tally = way.exchange(COPIES, SMALL, wanted, minimum=COPIES, wait=self._wait)
            if not tally.received:
                lost.append(f"{name} ({dscp})")
                continue
            seen = max(tally.classes, key=lambda one: tally.classes[one])
            if seen >> 2 == 0 and dscp:
                bleached.append(f"{name} ({dscp})")
            elif seen >> 2 != dscp:
                changed.append(f"{name} ({dscp} became {seen >> 2})")
            if seen & 3 != ecn and not (ecn == ECT_0 and seen & 3 == CE):  # a full queue turns ECT into CE
                cleared.append(f"{name} ({ecn:02b} became {seen & 3:02b})")
        trust = "have the switches trust DSCP (mlt switch generate), and look for a device on the path that rewrites it"
        for names, what, fix in (
            (bleached, "DSCP is bleached to 0", trust),
            (changed, "DSCP is changed", trust),
            (
                cleared,
                "ECN is changed",
                "look for a device that rewrites the whole TOS byte; without ECT nothing is marked",
            ),
            (lost, "nothing arrives", "look for a switch or filter that drops these classes"),
        ):
            if names:
                yield Finding("problem", f"{what} {way.words}: {', '.join(dict.fromkeys(names))}", fix)
        if not (bleached or changed or cleared or lost):
            yield Finding("ok", f"DSCP and ECN of every class arrive as they were sent, {way.words}")

    # ---- loss and round trip ----

    def _losses(self) -> Iterator[Finding]:
        dscp = self._here.dscp
        full = self._packet - self._session.port.overhead
        for what, size, code in (("small", SMALL, dscp.control), (f"{self._packet}-byte", full, dscp.data[0])):
            echoes = self._session.echoes(
                LOSS_COUNT, size, code << 2 | ECT_0, interval=LOSS_INTERVAL, wait=max(2 * self._wait, 0.5)
            )
            yield self._loss(what, echoes)

    def _loss(self, what: str, echoes: Echoes) -> Finding:
        there, back = echoes.sent - echoes.arrived, echoes.arrived - len(echoes.seconds)
        lost = max(there, 0) + max(back, 0)
        sent = count_of(echoes.sent, f"{what} packet")
        text = f"{sent}: {max(there, 0)} lost {self._to.words}, {max(back, 0)} on the path back"
        if echoes.seconds:
            p50, p99 = (echoes.quantile(one) * 1e6 for one in (0.5, 0.99))
            text += f"; round trip p50 {p50:,.0f} us, p99 {p99:,.0f} us"
        if lost == 0:
            return Finding("ok", text)
        fix = "look at the counters of every link on the path (ip -s link, ethtool -S, the switch's)"
        if lost < PROBLEM_LOSS * 2 * max(echoes.sent, 1):
            return Finding("optional", text, f"run it again; if it stays, {fix}")
        return Finding("problem", text, fix)


def _marks(dscp: DscpMap) -> Iterator[tuple[str, int, int]]:
    """(name, DSCP, ECN) of everything that mlt sends."""
    yield "control", dscp.control, ECT_0
    for number, code in enumerate(dscp.data):
        for ecn in (ECT_0, NOT_ECT):
            yield f"class {number}", code, ecn
