"""Arguments of a wrong type are named, in words instead of a native function's signature."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
from checks import names

import mlt
from mlt._shared.argument_types import explained, explains_types
from mlt.context import _FORMS, _TYPES


@explains_types
def double(count: int, factor: float = 2.0, *, ranks: Sequence[int] | None = None) -> float:
    return sum(ranks or ()) + count * factor + 0 * len(range(count))


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"count": "3"}, ("double: count is '3'", "integer")),
        ({"count": 3.5}, ("double: count is 3.5", "integer")),
        ({"count": 3, "factor": "5%"}, ("double: factor is '5%'", "number", "1% is 0.01")),
        ({"count": 3, "ranks": ["a"]}, ("double: ranks is ['a']", "integers")),
    ],
)
def test_explains_types__names_the_argument(arguments: dict[str, object], facts: tuple[str, ...]) -> None:
    with pytest.raises(TypeError, match=names(*facts)):
        double(**arguments)  # type: ignore[arg-type]


def test_explains_types__leaves_other_errors_and_results_alone() -> None:
    assert double(3, ranks=[1, 2]) == 9
    with pytest.raises(TypeError, match="unexpected keyword"):
        double(3, nosuch=1)  # type: ignore[call-arg]
    error = TypeError("of its own")
    assert (
        explained(error, "f", {"count": "int", "ranks": "Sequence[int] | None"}, {"count": 1, "ranks": None}) is error
    )


BAD = [
    ("post_recv", {"from_": 0, "loss_bound": b"1%"}, "loss_bound is b'1%'; it is a number, or '1%'"),
    ("post_recv", {"from_": "0"}, "from_ is '0'"),
    ("post_send", {"to": "1"}, "to is '1'"),
    ("post_send", {"to": 0, "tag": "x"}, "tag is 'x'"),
    ("post_all_reduce", {"loss_bound": [0.1]}, "loss_bound is [0.1]; it is a number, or '1%'"),
    ("all_reduce", {"ranks": ["a"]}, "ranks is ['a']"),
    ("all_reduce", {"op": "sum"}, "mlt.Reduction"),
    ("broadcast", {"root": "a"}, "root is 'a'"),
]


def test_context__names_arguments_of_a_wrong_type() -> None:
    with mlt.Context(rank=0, world_size=1) as context:
        for verb, arguments, fact in BAD:
            with pytest.raises(TypeError) as caught:
                getattr(context, verb)(bytearray(8), **arguments)
            assert fact in str(caught.value), verb
            assert "argument types" not in str(caught.value)
            assert "_core" not in str(caught.value)
    for given in ({"rank": "a", "world_size": 1}, {"rank": 0, "world_size": 1, "line_rate_gbps": "x"}):
        with pytest.raises(TypeError, match="Context: "):
            mlt.Context(**given)  # type: ignore[arg-type]


TEXTS = ("job", "master_addr", "host", "interface", "datapath")


@pytest.mark.parametrize("value", [b"x", 5, ["x"], 1.5])
@pytest.mark.parametrize("name", [*TEXTS, "faults", "secret"])
def test_context__names_an_option_of_a_wrong_type_before_anything_is_opened(name: str, value: object) -> None:
    if name == "secret" and value == b"x":
        pytest.skip("a secret may be bytes")
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(TypeError, match=names(f"Context: {name} is")) as caught:
        mlt.Context(0, 1, **{name: value})  # type: ignore[arg-type]
    # What earlier tests left may be closed meanwhile.
    assert set(os.listdir("/proc/self/fd")) - before == set()
    if name == "secret":
        assert "text or bytes" in str(caught.value)
        assert repr(value) not in str(caught.value)
    else:
        assert f", such as {name}=" in str(caught.value)
        assert repr(value) in str(caught.value)


def test_context__every_option_that_is_text_has_its_right_form() -> None:
    kinds = {name: getattr(kind, "__forward_arg__", kind) for name, kind in _TYPES.items()}
    assert {name for name, kind in kinds.items() if kind == "str | None"} == set(TEXTS) <= set(_FORMS)
    for name, kind in kinds.items():
        if kind.startswith(("int", "float")):
            with pytest.raises(TypeError, match=names(f"Context: {name} is b'1'")):
                mlt.Context(**{"rank": 0, "world_size": 1, name: b"1"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="qos_policy is b'x'; it is the path of a policy file, or a mapping"):
        mlt.Context(0, 1, qos_policy=b"x")  # type: ignore[arg-type]
