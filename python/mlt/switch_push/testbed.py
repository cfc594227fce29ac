"""The testbed's software switch as a device."""

from __future__ import annotations

from mlt._shared.units import format_size
from mlt.switch_configs.counters import QueueCounters
from mlt.switch_configs.errors import SwitchConfigError
from mlt.switch_configs.generator import Generated
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.policy import dump
from mlt.switch_push.device import Device, PushError
from mlt.testbed import Testbed, TestbedError

_TARGETS = {"ebpf": "linux-ebpf", "red": "linux"}


class TestbedSwitch(Device):
    """All switches of one testbed that is up, under one policy; port names, rates and buffers are the testbed's own."""

    __test__ = False  # keeps pytest from collecting it

    def __init__(self, name: str) -> None:
        try:
            self._bed = Testbed.attach(name)
        except TestbedError as error:
            raise PushError(str(error)) from None
        self.title = f"testbed {name}"
        self._applied = False

    def target(self, target: str) -> str:
        kind = self._bed.topology.queue
        if kind not in _TARGETS:
            raise PushError(f"{self.title}: queue {kind!r} has no classes; make it with --queue ebpf or red")
        if target not in ("linux", _TARGETS[kind]):
            raise PushError(f"{self.title}: is a Linux switch, queue {kind!r}; use --target linux, not {target}")
        return _TARGETS[kind]

    def preview(self, generated: Generated) -> str:
        before = self._bed.topology.policy
        ports = [f"{s}:{end.interface}" for s in self._bed.layout.switches for end in self._bed.layout.ports(s)]
        lines = [f"policy of {self.title}: {before or 'none'} -> {generated.plan.name}", f"ports: {' '.join(ports)}"]
        for queue in generated.plan.queues:
            detect = queue.random_detect
            red = "" if detect is None else f", marks and drops above {format_size(detect.min_bytes)}"
            limit = "" if queue.limit_bytes is None else f", holds {format_size(queue.limit_bytes)}"
            dscp = f" (DSCP {', '.join(map(str, queue.dscp))})" if queue.dscp else ""
            lines.append(f"queue {queue.number}: {queue.name}{dscp}{red}{limit}")
        return "\n".join(lines)

    def apply(self, generated: Generated, revert_in: float | None) -> None:
        try:
            self._bed.set_policy(dump(generated.plan.policy))
        except (TestbedError, SwitchConfigError) as error:
            raise PushError(str(error)) from None
        self._applied = True

    def confirm(self) -> None:
        self._applied = False

    def rollback(self) -> None:
        if self._applied:
            self._restore()
            self._applied = False

    def undo(self, generated: Generated) -> None:
        self._restore()

    def _restore(self) -> None:
        try:
            self._bed.restore_policy()
        except (TestbedError, SwitchConfigError) as error:
            raise PushError(str(error)) from None

    def counters(self, plan: Plan) -> list[QueueCounters]:
        return [
            QueueCounters(
                port=f"{row.switch}:{row.port}",
                queue=row.queue,
                sent=row.sent,
                marked=row.marked,
                dropped_early=row.dropped_early,
                dropped_at_limit=row.dropped_at_limit + row.dropped_full,
                queued_bytes=row.backlog,
            )
            for row in self._bed.counters()
        ]
