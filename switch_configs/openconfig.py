"""The policy as an OpenConfig QoS instance (RFC 7951 JSON): the neutral form, which its own YANG models can validate.

``wred/uniform`` with ``enable-ecn`` and ``drop`` both true is the selective drop of the paper's section 5.2. IPv4 and
IPv6 each have a classifier, with the same terms: OpenConfig binds one of each type to an interface.
"""

from __future__ import annotations

from typing import Any

from mlt.switch_configs.plan import Plan

# Classifier type -> (suffix of its name, the conditions' container).
FAMILIES = {"IPV4": ("", "ipv4"), "IPV6": ("-v6", "ipv6")}


def tree(plan: Plan) -> dict[str, Any]:
    """``openconfig-qos:qos`` of a plan made with full capabilities; interface names are the plan's."""
    name = plan.name
    scheduled = []
    for sequence, queue in enumerate(plan.queues):
        config = {"id": f"q{queue.number}", "input-type": "QUEUE", "queue": f"q{queue.number}"}
        if queue.weight_percent is not None:
            config["weight"] = str(queue.weight_percent)
        entry: dict[str, Any] = {"sequence": sequence, "config": {"sequence": sequence}}
        if queue.weight_percent is None:
            entry["config"]["priority"] = "STRICT"
        entry["inputs"] = {"input": [{"id": f"q{queue.number}", "config": config}]}
        scheduled.append(entry)
    profiles = [
        {
            "name": f"{name}-q{queue.number}",
            "config": {"name": f"{name}-q{queue.number}"},
            "wred": {
                "uniform": {
                    "config": {
                        "min-threshold": str(detect.min_bytes),
                        "max-threshold": str(detect.max_bytes),
                        "enable-ecn": detect.mark_ect,
                        "drop": detect.drop_not_ect,
                        "max-drop-probability-percent": detect.probability_percent,
                    }
                }
            },
        }
        for queue in plan.queues
        if (detect := queue.random_detect) is not None
    ]
    found = {
        "queues": {"queue": [_named(f"q{queue.number}") for queue in plan.queues]},
        "forwarding-groups": {
            "forwarding-group": [
                _named(f"{name}-{queue.name}", **{"output-queue": f"q{queue.number}"}) for queue in plan.queues
            ]
        },
        "classifiers": {"classifier": [_classifier(plan, family) for family in FAMILIES]},
        "queue-management-profiles": {"queue-management-profile": profiles},
        "scheduler-policies": {
            "scheduler-policy": [{"name": name, "config": {"name": name}, "schedulers": {"scheduler": scheduled}}]
        },
        "interfaces": {"interface": [_interface(plan, port) for port in plan.ports]},
    }
    if limits := [queue for queue in plan.queues if queue.limit_bytes is not None]:
        profile = _named(name) | {"queues": {"queue": [_limit(f"q{q.number}", q.limit_bytes or 0) for q in limits]}}
        found["buffer-allocation-profiles"] = {"buffer-allocation-profile": [profile]}
    return {"openconfig-qos:qos": found}


def _classifier(plan: Plan, family: str) -> dict[str, Any]:
    ending, container = FAMILIES[family]
    name = plan.name + ending
    terms = [
        {
            "id": queue.name,
            "config": {"id": queue.name},
            "conditions": {container: {"config": {"dscp-set": list(queue.dscp)}}},
            "actions": {"config": {"target-group": f"{plan.name}-{queue.name}"}},
        }
        for queue in plan.queues
        if queue.dscp
    ]
    return {"name": name, "config": {"name": name, "type": family}, "terms": {"term": terms}}


def _limit(queue: str, limit_bytes: int) -> dict[str, Any]:
    """A queue that may hold ``limit_bytes`` of the shared buffer, without reserved memory."""
    config = {
        "name": queue,
        "dedicated-buffer": "0",
        "use-shared-buffer": True,
        "shared-buffer-limit-type": "openconfig-qos:STATIC",
        "static-shared-buffer-limit": limit_bytes,
    }
    return {"name": queue, "config": config}


def _named(name: str, **config: str) -> dict[str, Any]:
    return {"name": name, "config": {"name": name, **config}}


def _interface(plan: Plan, port: str) -> dict[str, Any]:
    queues = [
        _named(f"q{queue.number}", **{"queue-management-profile": f"{plan.name}-q{queue.number}"})
        for queue in plan.queues
        if queue.random_detect is not None
    ]
    classifiers = [
        {"type": family, "config": {"type": family, "name": plan.name + ending}}
        for family, (ending, _) in FAMILIES.items()
    ]
    output: dict[str, Any] = {"scheduler-policy": {"config": {"name": plan.name}}, "queues": {"queue": queues}}
    if any(queue.limit_bytes is not None for queue in plan.queues):
        output["config"] = {"buffer-allocation-profile": plan.name}
    return {
        "interface-id": port,
        "config": {"interface-id": port},
        "input": {"classifiers": {"classifier": classifiers}},
        "output": output,
    }
