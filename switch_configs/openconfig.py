"""The policy as an OpenConfig QoS instance (RFC 7951 JSON): the neutral form its own YANG models can judge.

``wred/uniform`` with ``enable-ecn`` and ``drop`` both true is the selective drop of the paper's section 5.2.
"""

from __future__ import annotations

from typing import Any

from mlt.switch_configs.plan import Plan


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
    terms = [
        {
            "id": queue.name,
            "config": {"id": queue.name},
            "conditions": {"ipv4": {"config": {"dscp-set": list(queue.dscp)}}},
            "actions": {"config": {"target-group": f"{name}-{queue.name}"}},
        }
        for queue in plan.queues
        if queue.dscp
    ]
    return {
        "openconfig-qos:qos": {
            "queues": {"queue": [_named(f"q{queue.number}") for queue in plan.queues]},
            "forwarding-groups": {
                "forwarding-group": [
                    _named(f"{name}-{queue.name}", **{"output-queue": f"q{queue.number}"}) for queue in plan.queues
                ]
            },
            "classifiers": {
                "classifier": [{"name": name, "config": {"name": name, "type": "IPV4"}, "terms": {"term": terms}}]
            },
            "queue-management-profiles": {"queue-management-profile": profiles},
            "scheduler-policies": {
                "scheduler-policy": [{"name": name, "config": {"name": name}, "schedulers": {"scheduler": scheduled}}]
            },
            "interfaces": {"interface": [_interface(plan, port) for port in plan.ports]},
        }
    }


def _named(name: str, **config: str) -> dict[str, Any]:
    return {"name": name, "config": {"name": name, **config}}


def _interface(plan: Plan, port: str) -> dict[str, Any]:
    queues = [
        _named(f"q{queue.number}", **{"queue-management-profile": f"{plan.name}-q{queue.number}"})
        for queue in plan.queues
        if queue.random_detect is not None
    ]
    return {
        "interface-id": port,
        "config": {"interface-id": port},
        "input": {"classifiers": {"classifier": [{"type": "IPV4", "config": {"type": "IPV4", "name": plan.name}}]}},
        "output": {"scheduler-policy": {"config": {"name": plan.name}}, "queues": {"queue": queues}},
    }
