"""Every rule of the checker has a policy that breaks it and only it."""

from __future__ import annotations

import pytest
from mlt.switch_configs.errors import PolicyError
from mlt.switch_configs.semantics import findings, require_sound
from switch_lab import example, small


@pytest.mark.parametrize(
    ("edits", "rule"),
    [
        ({"s1": "73728"}, "s-rising"),
        ({"s1": "73729"}, "s-rising"),
        ({"l1": "262145"}, "l-rising"),
        ({"s1": "131072", "s2": "140000"}, "s-below-l"),
        ({"buffer": "200000"}, "l-within-buffer"),
        ({"dscp2": "46"}, "dscp-once"),
        ({"control": "{dscp: 46}"}, "dscp-once"),
        ({"control": "{dscp: 48, extra_dscp: [10]}"}, "dscp-once"),
        ({"dscp1": "0"}, "dscp-default"),
        ({"ecn": "false"}, "mark-and-drop"),
        ({"drop": "false"}, "mark-and-drop"),
        ({"s1": "1000"}, "s-holds-a-packet"),
        ({"queues": "3"}, "enough-queues"),
        ({"ports": "['3-1']"}, "ports"),
    ],
)
def test_findings__one_broken_rule_is_named(edits: dict[str, str], rule: str) -> None:
    policy = small(**edits)
    assert {finding.rule for finding in findings(policy) if finding.severity == "error"} == {rule}
    with pytest.raises(PolicyError, match=rule):
        require_sound(policy, source="p.yaml")


@pytest.mark.parametrize(
    ("edits", "rule"),
    [
        ({"probability": "90"}, "certain-drop"),
        ({"sharing": "weighted"}, "no-strict-priority"),
        ({"buffer": "270000"}, "l-oversubscribed"),
    ],
)
def test_findings__warnings_pass(edits: dict[str, str], rule: str) -> None:
    policy = small(**edits)
    assert [finding.rule for finding in findings(policy)] == [rule]
    require_sound(policy, source="p.yaml")


def test_findings__the_example_is_clean() -> None:
    assert findings(example()) == []
