"""``Testbed``: emulated hosts and a lossy network on one host, as a context manager.

    with Testbed(hosts=3, rate="200mbit", loss="1%") as bed:
        bed.exec("host0", ["ping", "-c", "3", bed.address("host1")])
        bed.set_loss("5%", link="host2")
        print(bed.counters())

Needs root. Owned by one thread; other processes attach to the same testbed with ``Testbed.attach(name)``.
"""

from __future__ import annotations

import itertools
import os
import secrets
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from mlt.job import secret
from mlt.testbed import (
    changes,
    cleanup,
    counters,
    delay_line,
    impairments,
    libbpf,
    links,
    namespaces,
    programs,
    requirements,
    state,
    switch_port,
    tc,
    tcp_control,
)
from mlt.testbed.delay_line import DelayCounters
from mlt.testbed.errors import BadTopologyError, TestbedError
from mlt.testbed.impairments import LossCounters
from mlt.testbed.layout import DIRECTIONS, HOST_INTERFACE, LINES, End, lay_out
from mlt.testbed.switch_port import Classes, PortSettings, QueueCounters
from mlt.testbed.topology import Topology, check_name, make

Result = TypeVar("Result")
_numbers = itertools.count(1)
DEFAULT_PORT = 29_500
# Names the testbed that a command runs in.
VARIABLE = "MLT_TESTBED"


class Testbed:
    """A testbed that is up between ``up`` and ``down`` (or inside ``with``).

    Pass a Topology, or its fields as keywords (``hosts=4, rate="200mbit", loss="1%"``). Raises BadTopologyError for
    invalid fields and MissingError for missing features of this host, both before any change; TestbedError for the
    rest.
    """

    __test__ = False  # keeps pytest from collecting it

    def __init__(self, topology: Topology | None = None, *, name: str | None = None, **fields: Any) -> None:
        if topology is not None and fields:
            raise BadTopologyError(f"give a Topology or its fields, not both: {', '.join(fields)}")
        self.topology = topology if topology is not None else make(fields)
        if self.topology.policy is not None:
            self.topology = self.topology.changed(policy=os.path.abspath(self.topology.policy))
        self.name = check_name(name if name is not None else f"py-{os.getpid()}-{next(_numbers)}")
        self.layout = lay_out(self.topology)
        self.classes = Classes(self.topology)
        self._tables: dict[str, libbpf.Table] = {}
        self._state: state.State | None = None
        self._line: subprocess.Popen[bytes] | None = None

    # Creation and removal

    def up(self, *, stays: bool = False) -> Testbed:
        """Create everything. ``stays``: the testbed outlives this process, until a call of ``down``."""
        if self._state is not None:
            raise TestbedError(f"testbed {self.name!r} is up already")
        requirements.require(self.topology)
        use_programs = requirements.can_load_programs()
        with state.locked():
            cleanup.sweep()
            made = state.State(
                name=self.name,
                owner=None if stays else state.owner(),
                user=state.user(),
                topology=self.topology.as_dict(),
                namespaces={node: str(namespaces.path_of(self.name, node)) for node in self.layout.nodes},
                secret=secrets.token_hex(32),
            )
            state.create(made)
            self._state = made
            try:
                self._build(use_programs)
                if self.layout.lines:
                    delay_line.create(self._line_file, self.layout, self.topology)
                    self._line = delay_line.start(self._line_file, self.path(LINES), stays=stays)
                made.ready = True
                state.write(made)
            except BaseException as error:
                self._remove()
                if isinstance(error, TestbedError) or not isinstance(error, Exception):
                    raise
                raise TestbedError(f"the testbed could not be made: {error}") from error
        return self

    def _build(self, use_programs: bool) -> None:
        for node in self.layout.nodes:
            namespaces.create(self.path(node))
        mtus = {link.name: self.topology.settings(link.name).mtu or 1500 for link in self.layout.links}
        links.connect(self.layout, self.path, mtus)
        loaded: list[libbpf.Program] = []
        try:
            port_source, loss_source = programs.sources()
            loss_program = port_program = None
            if use_programs:
                loss_program = libbpf.Program(programs.object_of(loss_source), loss_source.program)
                loaded.append(loss_program)
                self._keep(loss_program, "link_of_ifindex", "link_counters")
            if self.topology.queue == "ebpf":
                port_program = libbpf.Program(programs.object_of(port_source), port_source.program)
                loaded.append(port_program)
                self._keep(port_program, "queue_of_dscp", "port_of_ifindex", "counters")
            for switch in self.layout.switches:
                commands = self.classes.commands([self._port(end) for end in self.layout.ports(switch)])
                tc.batch(self.path(switch), commands.tc)
                self._write(commands.tables)
            for host in self.layout.hosts:
                tc.batch(self.path(host), [f"qdisc add dev {HOST_INTERFACE} clsact", *self._host_queue(host)])
            for link in self.layout.links:
                for end in link.ports() if port_program is not None else ():
                    links.attach(end, self.path, port_program.fd, "mlt_switch_port", ingress=False)  # type: ignore[union-attr]
                for direction in DIRECTIONS if loss_program is not None else ():
                    end = link.receiver(direction)
                    self._tables["link_counters"].update(counters.key_of(end), impairments.EMPTY_COUNTER)
                    links.attach(end, self.path, loss_program.fd, "mlt_link_loss", ingress=True)  # type: ignore[union-attr]
            self._write_losses()
        finally:
            for program in loaded:
                program.close()

    def _keep(self, program: libbpf.Program, *names: str) -> None:
        assert self._state is not None
        for name in names:
            self._tables[name] = program.table(name)
            self._state.tables[name] = self._tables[name].id

    def down(self) -> None:
        """End every process inside and remove everything. Idempotent."""
        if self._state is not None:
            with state.locked():
                self._remove()

    def _remove(self) -> None:
        for table in self._tables.values():
            table.close()
        self._tables = {}
        if self._state is not None:
            cleanup.dismantle(self._state)
        self._state = None
        if self._line is not None:
            self._line.wait()
            self._line = None

    @classmethod
    def attach(cls, name: str) -> Testbed:
        """Attach to a testbed that another process created; raises TestbedError if none has that name."""
        found = state.read(name)
        if found.is_abandoned():
            raise TestbedError(
                f"testbed {name!r} lost its process; 'mlt testbed down --name {name}' removes what it left"
            )
        if not found.ready:
            raise TestbedError(f"testbed {name!r} is still being made; try again in a moment")
        bed = cls(make(found.topology), name=name)
        bed._state = found
        bed._tables = {table: libbpf.Table.by_id(number) for table, number in found.tables.items()}
        return bed

    def __enter__(self) -> Testbed:
        return self.up()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    # Commands

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self.layout.hosts)

    def address(self, host: str) -> str:
        """The IPv4 address of a host."""
        return self.layout.hosts[self._host(host)]

    def path(self, node: str) -> Path:
        """Mount point of the namespace of a host or switch."""
        return namespaces.path_of(self.name, node)

    def environment(
        self, host: str, *, port: int = DEFAULT_PORT, ranks_per_host: int = 1, local_rank: int = 0
    ) -> dict[str, str]:
        """Environment of a command on ``host``: rank, world, rank 0's address, the interface to use, the job's secret,
        and the switches' policy, if any. Ranks of one host, ``ranks_per_host`` of them, are adjacent."""
        policy = self.topology.policy
        has_secret = os.environ.get(secret.VARIABLE) or os.environ.get(secret.FILE_VARIABLE)
        return {
            "RANK": str(self.hosts.index(self._host(host)) * ranks_per_host + local_rank),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(ranks_per_host),
            "WORLD_SIZE": str(len(self.hosts) * ranks_per_host),
            "MASTER_ADDR": self.address(self.hosts[0]),
            "MASTER_PORT": str(port),
            "MLT_INTERFACE": HOST_INTERFACE,
            "GLOO_SOCKET_IFNAME": HOST_INTERFACE,
            "NCCL_SOCKET_IFNAME": HOST_INTERFACE,
            VARIABLE: self.name,
            "MLT_TESTBED_HOST": host,
            # With DSCPs that the switches do not know, all packets would be in the default class.
            **({} if policy is None else {"MLT_QOS_POLICY": policy}),
            # One secret for all hosts, whichever process starts their commands; the user's own, if set.
            **({} if has_secret or self._state is None else {secret.VARIABLE: self._state.secret}),
        }

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` on ``host``."""
        return [*namespaces.enter_command(self.path(self._host(host))), *command]

    def popen(self, host: str, command: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any) -> Any:
        """``subprocess.Popen`` on ``host``; the child is killed if this process dies, and ended by ``down``."""
        full = {**os.environ, **self.environment(host), **(env or {})}
        guarded = ["setpriv", "--pdeathsig", "KILL", *self.command(host, command)]
        return subprocess.Popen(guarded, env=full, **options)

    def exec(
        self, host: str, command: Sequence[str], *, timeout: float | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run ``command`` on ``host`` until it ends; its output is text."""
        process = self.popen(host, command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            process.communicate()
            raise
        return subprocess.CompletedProcess(list(command), process.returncode, out, err)

    def inside(self, host: str, work: Callable[[], Result]) -> Result:
        """Run ``work`` in a thread on ``host``; sockets that it opens stay in that namespace. Raises what ``work``
        raises."""
        return namespaces.inside(self.path(self._host(host)), work)

    # Changes

    def set_tcp_control(self, name: str) -> None:
        """TCP congestion control of every host's new connections, such as "cubic"; the default is this machine's.

        Raises TestbedError if the kernel has none of that name.
        """
        self._up()
        with state.locked():  # the machine's list of allowed ones changes for a moment
            tcp_control.set_control([self.path(host) for host in self.hosts], name)

    def set_loss(self, loss: str | float, *, link: str | None = None, direction: str | None = None) -> None:
        """Drop a fraction of packets on one link (default: both directions), or on every host's uplink."""
        self._change(changes.with_loss(self.topology, loss, link=link, direction=direction))

    def set_delay(
        self,
        delay: str | float | None = None,
        *,
        jitter: str | float | None = None,
        link: str | None = None,
        direction: str | None = None,
    ) -> None:
        """Change delay, jitter or both of one link (default: both directions), or of every host's link upwards.

        The links must have a delay line, which they have if they were created with a delay, be it 0.
        """
        changed = changes.with_delay(self.topology, delay, jitter=jitter, link=link, direction=direction)
        for name in self.topology.host_names() if link is None else [link]:
            if self.layout.link(name).line is None:
                raise BadTopologyError(
                    f"link {name!r} was created without a delay line: create the testbed with --delay 0, or the link "
                    "with delay: 0 in the topology file"
                )
        self._change(changed)

    def set_rate(self, rate: str | int, *, link: str | None = None) -> None:
        """Change the rate of one link, or of all."""
        self._change(changes.with_rate(self.topology, rate, link=link))

    def set_buffer(self, buffer: str | int, *, link: str | None = None) -> None:
        """Change the buffer of the switch ports on one link, or on all."""
        self._change(changes.with_buffer(self.topology, buffer, link=link))

    def set_policy(self, text: str) -> None:
        """Give every switch port the classes of a policy (YAML text) while packets flow; queued packets stay.

        Raises TestbedError, or SwitchConfigError for an invalid policy; then nothing has changed.
        """
        made = self._up()
        kept = state.keep_policy(self.name, len(made.policies) + 1, text)
        before = self.topology.policy
        try:
            self._change_policy(str(kept), [*made.policies, before])
        except BaseException:
            kept.unlink()
            raise

    def restore_policy(self) -> None:
        """Undo the latest ``set_policy``; raises TestbedError if nothing is to be undone."""
        made = self._up()
        if not made.policies:
            raise TestbedError(f"testbed {self.name!r} has the policy that it was created with; nothing to undo")
        self._change_policy(made.policies[-1], made.policies[:-1])

    def _change_policy(self, policy: str | None, before: list[str | None]) -> None:
        made, old = self._up(), (self.topology, self.classes)
        try:
            self.topology = self.topology.changed(policy=policy)
            self.classes = Classes(self.topology)
            commands = {
                switch: self.classes.commands([self._port(end) for end in self.layout.ports(switch)])
                for switch in self.layout.switches
            }
        except BaseException:
            self.topology, self.classes = old
            raise
        with state.locked():
            for switch, each in commands.items():
                tc.batch(self.path(switch), switch_port.as_policy_change(self.topology.queue, each.tc))
                self._write(each.tables)
            made.topology, made.policies = self.topology.as_dict(), before
            state.write(made)

    def break_link(self, link: str) -> None:
        """Take a link down as if unplugged; routes avoid it where another route exists."""
        self._plug(link, up=False)

    def heal_link(self, link: str) -> None:
        """Undo ``break_link``."""
        self._plug(link, up=True)

    def _plug(self, link: str, *, up: bool) -> None:
        made = self._up()
        self.topology.with_link(link)  # rejects an unknown name
        with state.locked():
            links.set_carrier(self.layout.link(link), self.path, up)
            broken = (set(made.broken) - {link}) if up else (set(made.broken) | {link})
            made.broken = sorted(broken)
            links.converge(self.layout, self.path, frozenset(broken))
            state.write(made)

    def _change(self, topology: Topology) -> None:
        made = self._up()
        if any(topology.settings(link) != self.topology.settings(link) for link in topology.link_names()):
            requirements.require(topology)
        before, self.topology = self.topology, topology
        try:
            ports = {
                switch: [self._port(end) for end in self.layout.ports(switch) if self._differs(before, end)]
                for switch in self.layout.switches
            }
            commands = {switch: self.classes.commands(changed) for switch, changed in ports.items() if changed}
        except BaseException:
            self.topology = before
            raise
        with state.locked():
            for switch, each in commands.items():
                tc.batch(self.path(switch), switch_port.as_change(each.tc))
                self._write(each.tables)
            for host in self.layout.hosts:
                if before.settings(host) != topology.settings(host):
                    tc.batch(self.path(host), self._host_queue(host))
            self._write_losses()
            if self.layout.lines:
                delay_line.apply(self._line_file, self.layout, topology)
            made.topology = topology.as_dict()
            state.write(made)

    # Counters

    def counters(self) -> list[QueueCounters]:
        """Every queue of every switch port: packets sent, marked and dropped, bytes queued."""
        self._up()
        return counters.of_queues(self.layout, self.topology.queue, self.classes.queue_names(), self._tables, self.path)

    def link_counters(self) -> list[LossCounters]:
        """Both directions of every link: packets that arrived at the far end, and packets dropped by injected loss."""
        return counters.of_links(self.layout, self.topology, self._tables, frozenset(self._up().broken))

    def delay_counters(self) -> list[DelayCounters]:
        """Both directions of every delay line; raises TestbedError if its program has ended."""
        self._up()
        return delay_line.counters(self._line_file, self.layout) if self.layout.lines else []

    @property
    def counts_links(self) -> bool:
        """Whether the seeded program is on the links; without it their counters are 0."""
        return "link_counters" in self._tables

    def port_state(self, switch: str, port: str) -> switch_port.PortState:
        """State of a port in the eBPF program; raises TestbedError if another queue is in use."""
        self._up()
        end = next(end for end in self.layout.ports(switch) if end.interface == port)
        if "port_of_ifindex" not in self._tables:
            raise TestbedError(f"queue {self.topology.queue!r} has no program; only ebpf has")
        values = self._tables["port_of_ifindex"].lookup(counters.key_of(end), locked=True)
        if values is None:
            raise TestbedError(f"{switch} has no entry for port {port}")
        return switch_port.decode_port(values[0])

    # Helpers

    @property
    def _line_file(self) -> Path:
        return state.line_file(self.name)

    def _up(self) -> state.State:
        if self._state is None:
            raise TestbedError(f"testbed {self.name!r} is not up")
        return self._state

    def _host(self, host: str) -> str:
        if host not in self.layout.hosts:
            raise BadTopologyError(f"no host {host!r}; there are {', '.join(self.layout.hosts)}")
        return host

    def _port(self, end: End) -> PortSettings:
        settings = self.topology.settings(self.layout.link_of(end))
        assert settings.rate is not None
        return PortSettings(end.interface, end.index, settings.rate, settings.buffer or self.classes.buffer)

    def _differs(self, before: Topology, end: End) -> bool:
        link = self.layout.link_of(end)
        old, new = before.settings(link), self.topology.settings(link)
        return (old.rate, old.buffer) != (new.rate, new.buffer)

    def _host_queue(self, host: str) -> list[str]:
        settings = self.topology.settings(host)
        assert settings.rate is not None
        by_netem = 0.0 if "link_of_ifindex" in self._tables else (settings.loss_up or 0.0)
        return impairments.host_queue(HOST_INTERFACE, settings.rate, netem_loss=by_netem)

    def _write(self, tables: dict[str, dict[bytes, bytes]]) -> None:
        for name, entries in tables.items():
            for key, value in entries.items():
                self._tables[name].update(key, value)

    def _write_losses(self) -> None:
        if "link_of_ifindex" not in self._tables:
            return
        for link in self.layout.links:
            settings = self.topology.settings(link.name)
            for direction in DIRECTIONS:
                seed = impairments.seed_of(self.topology.seed, link.name, direction)
                loss = float(getattr(settings, f"loss_{direction}") or 0)
                self._tables["link_of_ifindex"].update(
                    counters.key_of(link.receiver(direction)), impairments.encode(loss, seed)
                )
