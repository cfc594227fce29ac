"""Programs of one rank, for the tests of CrossBarrier; started by job.py with the program's name and its options."""

from __future__ import annotations

import copy
import json
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlt.torch.byteps.cross_barrier as bps
import mlt.torch.horovod as hvd
from mlt.torch.byteps import DistributedOptimizer, resume, suspend

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import torch
from semantics import Checks, fails
from torch import nn

CHECKS = Checks()
check = CHECKS.add

Make = Callable[[nn.Module], torch.optim.Optimizer]
optim = torch.optim


def of(kind: str, **options: Any) -> Make:
    """An optimizer of this class, in two groups of different rates."""

    def make(model: nn.Module) -> torch.optim.Optimizer:
        parameters = [one for one in model.parameters() if kind != "Muon" or one.dim() == 2]
        groups: Any = [{"params": parameters[:1]}, {"params": parameters[1:], "lr": 0.02}]
        made: torch.optim.Optimizer = getattr(torch.optim, kind)(groups, **{"lr": 0.05, **options})
        return made

    return make


OPTIMIZERS: dict[str, Make] = {
    "SGD": of("SGD"),
    "SGD with momentum": of("SGD", momentum=0.9, weight_decay=0.01, dampening=0.1),
    "SGD of Nesterov": of("SGD", momentum=0.9, nesterov=True),
    "Adam": of("Adam", weight_decay=0.01),
    "Adam with its maximum": of("Adam", amsgrad=True),
    "Adam over lists": of("Adam", foreach=True),
    "Adam in one kernel": of("Adam", fused=True),
    "Adam with a tensor as rate": lambda model: optim.Adam(model.parameters(), lr=torch.tensor(0.05)),
    "RMSprop": of("RMSprop", momentum=0.5, centered=True),
    **{
        kind: of(kind)
        for kind in ("ASGD", "Adadelta", "Adafactor", "Adagrad", "AdamW", "Adamax", "Muon", "NAdam", "RAdam", "Rprop")
        if hasattr(torch.optim, kind)
    },
}


def model_of() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 2))


def batch_of(step: int, rank: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10 * step + (hvd.rank() if rank is None else rank))
    return torch.randn(3, 4, generator=generator)


def plain(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> Any:
    options.pop("num_steps", None)
    return DistributedOptimizer(optimizer, model.named_parameters(), **options)


def crossed(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> Any:
    return bps.CrossBarrier(model, optimizer, model.named_parameters(), **options)


def step_of(model: nn.Module, step: int) -> None:
    model(batch_of(step)).square().sum().backward()


def trained(
    wrap: Callable[..., Any],
    make: Make,
    *,
    build: Callable[[], nn.Module] = model_of,
    steps: int = 5,
    clear: Callable[[nn.Module, Any], object] = lambda _, optimizer: optimizer.zero_grad(),
    one_step: Callable[[nn.Module, int], object] = step_of,
    schedules: bool = True,
    applies: Callable[[nn.Module, Any], object] = lambda _, optimizer: optimizer.step(),
    **options: Any,
) -> tuple[list[torch.Tensor], Any]:
    """Parameters, and the state of the optimizer, after these steps."""
    model = build()
    optimizer = wrap(model, make(model), num_steps=steps, **options)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7) if schedules else None
    for step in range(steps):
        clear(model, optimizer)
        one_step(model, step)
        applies(model, optimizer)
        if scheduler is not None:
            scheduler.step()
    return [one.detach().clone() for one in model.parameters()], optimizer.state_dict()


def leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for key in sorted(value, key=str) for leaf in leaves(value[key])]
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in leaves(one)]
    return [value]


def same_bits(make: Make, **options: Any) -> None:
    """CrossBarrier's parameters and state are those of DistributedOptimizer, and those of the other rank."""
    (parameters, state), (expected, other) = trained(crossed, make, **options), trained(plain, make, **options)
    for one, two in zip(leaves([parameters, state]), leaves([expected, other]), strict=True):
        assert torch.equal(one, two) if torch.is_tensor(one) else one == two, (one, two)
    of_ranks = hvd.allgather_object([one.tolist() for one in parameters])
    assert all(one == of_ranks[0] for one in of_ranks)
    untrained = options.get("build", model_of)().parameters()
    assert not all(torch.equal(one, two) for one, two in zip(parameters, untrained, strict=True))


@check
def every_optimizer_with_a_schedule() -> None:
    for name, make in OPTIMIZERS.items():
        try:
            same_bits(make)
        except Exception as error:
            raise AssertionError(name) from error


@check
def sparse_gradients() -> None:
    def build() -> nn.Module:
        torch.manual_seed(1)
        return nn.Embedding(6, 3, sparse=True)

    def one_step(model: nn.Module, step: int) -> None:
        model(torch.tensor([step % 6, hvd.rank()])).square().sum().backward()

    for make in (lambda model: optim.SparseAdam(model.parameters()), lambda model: optim.SGD(model.parameters(), lr=1)):
        same_bits(make, build=build, one_step=one_step, schedules=False)


@check
def every_way_to_clear_gradients() -> None:
    make = of("SGD", momentum=0.9)
    same_bits(make, clear=lambda _, optimizer: optimizer.zero_grad(set_to_none=False))
    same_bits(make, clear=lambda model, _: model.zero_grad())
    same_bits(make, clear=lambda _, __: None)  # gradients add up

    def twice(_: nn.Module, optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=False)
        optimizer.zero_grad()

    same_bits(make, clear=twice)


@check
def accumulated_and_compressed_gradients() -> None:
    def twice(model: nn.Module, step: int) -> None:
        step_of(model, step)
        step_of(model, step + 100)

    same_bits(of("Adam"), one_step=twice, backward_passes_per_step=2)
    same_bits(of("Adam"), compression=bps.Compression.fp16)


@check
def clipped_gradients() -> None:
    def applies(model: nn.Module, optimizer: Any) -> None:
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            optimizer.step()

    same_bits(of("Adam"), applies=applies)


class Attention(nn.Module):
    """Modules that use parameters of others without calling them, a shared parameter, one of its own, one unused."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.heads = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.heads[1].weight = self.heads[0].weight
        self.scale = nn.Parameter(torch.ones(4))
        self.unused = nn.Linear(2, 2)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.step = 0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.step += 1
        found = self.layer(inputs[None])[0] * self.scale
        if self.step % 3:  # every third step leaves these out
            found = self.heads[1](self.heads[0](found))
        frozen: torch.Tensor = self.frozen(found)
        return frozen


def attention() -> nn.Module:
    torch.manual_seed(1)
    return Attention()


@check
def modules_in_other_modules() -> None:
    for name in ("SGD with momentum", "Adam"):
        same_bits(lambda model, name=name: OPTIMIZERS[name](model), build=attention, steps=7)


@check
def parameters_outside_the_model_and_new_groups() -> None:
    outside = {}

    def make(model: nn.Module) -> torch.optim.Optimizer:
        outside[model] = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        return torch.optim.SGD([*model.parameters(), outside[model][0]], lr=0.1)

    found = []
    for crosses in (True, False):
        model = model_of()
        optimizer: Any = make(model)
        named = [*model.named_parameters(), ("outside", outside[model][0])]
        optimizer = bps.CrossBarrier(model, optimizer, named) if crosses else DistributedOptimizer(optimizer, named)
        optimizer.add_param_group({"params": [outside[model][1]]})  # not averaged
        for step in range(3):
            optimizer.zero_grad()
            loss = (model(batch_of(step)) * outside[model][0] * outside[model][1]).square().sum()
            loss.backward()
            optimizer.step()
        if crosses:
            optimizer.synchronize()
        found.append([one.detach() for one in (*model.parameters(), *outside[model])])
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))


class Meet(nn.Module):
    """Calls a function in the forward pass, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.call: Callable[[], object] = lambda: None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.call()
        return inputs


@check
def large_layers_are_less_urgent_than_small_ones_in_front_of_them() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8000), nn.Linear(8000, 2))
    layers = crossed(model, of("SGD")(model))._layers
    assert [layers[number] for number in range(len(layers))] == [0, 0, 0, 0, 1, 2, 2, 2]


@check
def front_layer_runs_while_a_back_layer_waits() -> None:
    torch.manual_seed(1)
    front, meet, back = nn.Linear(4, 4), Meet(), nn.Linear(4, 2)
    model = nn.Sequential(front, meet, back)
    optimizer = crossed(model, torch.optim.SGD(model.parameters(), lr=0.1))
    step_of(model, 0)
    optimizer.step()
    if hvd.rank() == 0:
        step_of(model, 1)
        optimizer.step()
        # Rank 1 sends the back layer's gradient only once the front layer of this pass has run here.
        meet.call = lambda: hvd.broadcast_object("front layer has run", root_rank=0, name="meet")
        model(batch_of(2))
    else:
        front(batch_of(1)).square().sum().backward()
        assert hvd.broadcast_object(None, root_rank=0, name="meet") == "front layer has run"
        optimizer.step()
    optimizer.synchronize()
    digests = hvd.allgather_object([one.tolist() for one in model.parameters()])
    assert digests[0] == digests[1]


@check
def what_reads_the_parameters_waits_for_the_step() -> None:
    make = of("SGD", momentum=0.9)
    expected = trained(plain, make, steps=3, schedules=False)
    batch = batch_of(9, rank=0)

    def after(read: Callable[[nn.Module, Any], Any]) -> Any:
        model = model_of()
        optimizer = crossed(model, make(model))
        for step in range(3):
            optimizer.zero_grad()
            step_of(model, step)
            optimizer.step()
        return read(model, optimizer)

    assert all(
        torch.equal(*pair) for pair in zip(after(lambda m, _: m.state_dict()).values(), expected[0], strict=True)
    )
    one, two = after(lambda m, o: (o.state_dict(), m))
    assert str(one) == str(expected[1])

    def evaluated(model: nn.Module, _: Any) -> torch.Tensor:
        with torch.no_grad():
            return nn.functional.linear(model[:3](batch), model[3].weight, model[3].bias)

    assert torch.equal(after(evaluated), two(batch))
    inner = after(lambda m, _: m[3].state_dict())
    assert torch.equal(inner["weight"], two[3].weight)

    def copies(model: nn.Module, optimizer: Any) -> None:
        optimizer.synchronize()
        optimizer.synchronize()  # nothing is left
        for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(clone(batch), two(batch))
            clone.load_state_dict(model.state_dict())

    after(copies)

    def reload(model: nn.Module, optimizer: Any) -> None:
        before = copy.deepcopy(model_of().state_dict())
        model.load_state_dict(before)
        optimizer.load_state_dict(optimizer.state_dict())
        model(batch)  # no update of before is left
        assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())

    after(reload)


@check
def shutdown_completes_the_last_step() -> None:
    make = of("Adam")
    expected, _ = trained(plain, make, steps=1, schedules=False)
    model = model_of()
    optimizer = crossed(model, make(model))
    step_of(model, 0)
    optimizer.step()
    suspend()
    resume(num_workers=hvd_size, num_servers=0, global_rank=hvd_rank)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), expected, strict=True))


@check
def every_step_after_the_last_waits() -> None:
    model = model_of()
    optimizer = crossed(model, torch.optim.SGD(model.parameters(), lr=0.1), num_steps=2)
    for step in range(3):
        before = [one.detach().clone() for one in model.parameters()]
        step_of(model, step)
        optimizer.step()
        changed = not all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))
        assert changed == (step > 0)
        optimizer.synchronize()
        optimizer.zero_grad()


@check
def distributed_optimizer_and_states_of_rank_0() -> None:
    make = of("SGD", momentum=0.9)
    model = model_of()
    if hvd.rank() == 1:
        with torch.no_grad():
            model[0].weight += 1
    inner = DistributedOptimizer(make(model), model.named_parameters())
    optimizer = bps.CrossBarrier(model, inner, num_steps=5)
    assert isinstance(optimizer, torch.optim.SGD)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    for step in range(5):
        optimizer.zero_grad()
        step_of(model, step)
        optimizer.step()
        scheduler.step()
    expected, _ = trained(plain, make)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), expected, strict=True))


class Own(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        """Couples the parameters, for all that is known."""


class Inherited(torch.optim.SGD):
    """The step of its base."""


@check
def what_it_cannot_do_is_rejected() -> None:
    model = model_of()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for other in (torch.optim.LBFGS(model.parameters()), Own(model.parameters(), lr=0.1)):
        for given in (other, DistributedOptimizer(other)):
            with fails(TypeError, type(other).__name__, "use DistributedOptimizer", "SGD"):
                bps.CrossBarrier(model, given)
    bps.CrossBarrier(model, Inherited(model.parameters(), lr=0.1))
    with fails(ValueError, "num_steps is 0"):
        bps.CrossBarrier(model, sgd, num_steps=0)
    with fails(ValueError, "DistributedOptimizer", "named_parameters"):
        bps.CrossBarrier(model, DistributedOptimizer(sgd), model.named_parameters())
    with fails(TypeError, "Adasum"):
        bps.CrossBarrier(model, hvd.DistributedOptimizer(sgd, op=hvd.Adasum))


@check
def step_with_a_closure_or_hooks_is_rejected() -> None:
    model = model_of()
    optimizer = crossed(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with fails(ValueError, "closure", "backward()"):
        optimizer.step(lambda: 0.0)
    hook = optimizer.register_step_post_hook(lambda *_: None)
    with fails(TypeError, "hooks", "DistributedOptimizer"):
        optimizer.step()
    hook.remove()
    step_of(model, 0)
    with fails(AssertionError, "zero_grad"):
        optimizer.zero_grad()
    optimizer.step()
    optimizer.synchronize()


@check
def changed_gradients_are_found() -> None:
    def changed(change: Callable[[nn.Module], object]) -> None:
        model = model_of()
        optimizer = crossed(model, torch.optim.SGD(model.parameters(), lr=0.1))
        step_of(model, 0)
        optimizer.step()
        change(model)
        with fails(RuntimeError, "Gradient.", "was changed", "optimizer.synchronize()"):
            model(batch_of(1))
        optimizer.zero_grad()
        step_of(model, 1)  # the others of that step are lost, and the next is another
        optimizer.step()
        optimizer.synchronize()

    changed(lambda model: model.zero_grad(set_to_none=False))
    changed(lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1e-6))
    changed(lambda model: setattr(model[0].weight, "grad", torch.zeros(8, 4)))


@check
def use_before_the_update_is_found() -> None:
    model = model_of()
    optimizer = crossed(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(2):  # the modules are known
        step_of(model, step)
        optimizer.step()
        optimizer.zero_grad()
    with fails(RuntimeError, "'Gradient.0.weight'", "before its update", "optimizer.synchronize()"):
        nn.functional.linear(batch_of(2), model[0].weight).sum().backward()
    optimizer.zero_grad()
    optimizer.synchronize()


hvd_size, hvd_rank = 0, 0


def semantics(checks: list[str]) -> dict[str, str]:
    """The failures of these checks, by name; empty: none."""
    global hvd_size, hvd_rank
    hvd.init()
    hvd_size, hvd_rank = hvd.size(), hvd.rank()
    found = CHECKS.failures(checks)
    hvd.shutdown()
    return found


def failing(how: str) -> str:
    """Rank 1 fails in the forward pass of the third step; the error of the others."""
    hvd.init()
    model = model_of()
    optimizer = crossed(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def fail(*_: Any) -> None:
        if how == "raise":
            raise ArithmeticError("of the program")
        print("kill me", flush=True)
        time.sleep(60)

    try:
        for step in range(6):
            if step == 2 and hvd.rank() == 1:
                model[3].register_forward_pre_hook(fail)
            optimizer.zero_grad()
            step_of(model, step)
            optimizer.step()
    except hvd.HorovodInternalError as error:
        assert not optimizer._updates
        return str(error)
    return "no error"


def main() -> None:
    program, options = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps(globals()[program](**options)))


if __name__ == "__main__":
    main()
