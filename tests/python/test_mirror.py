"""The place of a module's tests: the file of its name at the mirrored place, or the one that ``TESTED_BY`` has.

The mirrored place of ``python/mlt/perf/report.py`` is ``tests/python/perf``, and the file is ``test_report.py`` or,
because pytest requires unique file names, ``test_perf_report.py``. The modules at the top of ``python/mlt`` have their
tests in ``tests/python/transport``, those of ``switch_configs`` in ``tests/python/switch_configs``, those of
``plugins/torch`` in ``tests/plugins/torch``, and so on.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from test_import_layers import MODULES, ROOT, imports

TESTS = ROOT / "tests"
# Sources without a test file of their name -> the file that tests them, below tests/. A key that ends with a dot stands
# for all modules of that package that have none.
TESTED_BY = {
    "mlt.__main__": "python/cli/test_style.py",
    "mlt._callbacks": "python/transport/test_push_pull.py",
    "mlt._named.": "python/named/test_controller.py",
    "mlt._named.api": "plugins/torch/test_horovod.py",
    "mlt._named.basics": "plugins/torch/test_horovod.py",
    "mlt._named.compression": "plugins/torch/test_horovod.py",
    "mlt._named.control": "plugins/torch/test_horovod.py",
    "mlt._named.elastic": "plugins/torch/test_horovod.py",
    "mlt._named.job": "plugins/torch/test_horovod.py",
    "mlt._named.objects": "plugins/torch/test_horovod.py",
    "mlt._named.process_sets": "plugins/torch/test_horovod.py",
    "mlt._named.reduce_ops": "plugins/torch/test_horovod.py",
    "mlt._shared.addresses": "python/options/test_paths.py",
    "mlt._shared.json_lines": "python/shared/test_link.py",
    "mlt._shared.unit_fields": "python/shared/test_units.py",
    "mlt.cli.": "python/cli/test_bad_input_commands.py",
    "mlt.cli.help_text": "python/cli/test_short_help.py",
    "mlt.cli.main": "python/cli/test_short_help.py",
    "mlt.cli.plan_routing": "python/planners/aro/test_aro_convert.py",
    "mlt.cli.plan_simulate": "python/cli/test_cli_plan.py",
    "mlt.cli.serve": "python/transport/test_serve_command.py",
    "mlt.cli.switch": "python/switch_configs/test_switch_cli.py",
    "mlt.cli.switch_apply": "python/switch_push/test_push_linux.py",
    "mlt.cli.switch_policy": "python/switch_configs/test_switch_cli.py",
    "mlt.cli.switch_verify": "python/switch_push/test_push_counters.py",
    "mlt.cli.testbed": "python/testbed/test_testbed_command.py",
    "mlt.cli.unit_option": "python/shared/test_units.py",
    "mlt.context": "python/transport/test_context_transfers.py",
    "mlt.demo.": "python/demo/test_demo.py",
    "mlt.demo.plot": "python/demo/test_demo_display.py",
    "mlt.demo.runner": "python/demo/test_demo_display.py",
    "mlt.demo.table": "python/demo/test_demo_display.py",
    "mlt.diagnosis.": "python/diagnosis/test_examine.py",
    "mlt.job.epochs.messages": "python/job/epochs/test_epochs_coordinator.py",
    "mlt.job.epochs.settings": "python/job/epochs/test_epochs_coordinator.py",
    "mlt.job._rendezvous_host": "python/job/test_rendezvous.py",
    "mlt.job._rendezvous_lines": "python/job/test_rendezvous.py",
    "mlt.job.handshake_client": "python/job/test_rendezvous.py",
    "mlt.nccl.__main__": "plugins/nccl/test_nccl.py",
    "mlt.operation": "python/transport/test_context_waits.py",
    "mlt.mxnet.": "plugins/mxnet/test_mxnet.py",
    "mlt.mxnet.byteps.": "plugins/mxnet/test_mxnet_byteps.py",
    "mlt.options._plan_paths": "python/options/test_paths.py",
    "mlt.options.arguments": "python/transport/test_bad_input.py",
    "mlt.perf.": "python/perf/test_perf_session.py",
    "mlt.perf.transports.": "python/perf/test_perf_local.py",
    "mlt.perf.transports.raw_udp": "python/perf/test_perf_raw_udp.py",
    "mlt.planners.aleph.clustering_greedy": "python/planners/aleph/test_aggregation_model.py",
    "mlt.planners.aro.": "python/planners/aro/test_routing_solvers.py",
    "mlt.planners.cluster._file": "python/planners/cluster/test_cluster.py",
    "mlt.planners.plan._file": "python/planners/plan/test_plan.py",
    "mlt.planners.psnet.addressing": "python/planners/psnet/test_psnet.py",
    "mlt.planners.psnet.checks": "python/planners/psnet/test_clos.py",
    "mlt.planners.psnet.cluster_io": "python/planners/psnet/test_cluster_psnet.py",
    "mlt.planners.psnet.jobs": "python/planners/psnet/test_placement.py",
    "mlt.planners.psnet.paths": "python/planners/psnet/test_routing.py",
    "mlt.planners.psnet.routing_model": "python/planners/psnet/test_routing.py",
    "mlt.planners.psnet.verify": "python/planners/psnet/test_routing.py",
    "mlt.simulation.report": "python/simulation/test_workload.py",
    "mlt.simulation.scenario": "python/simulation/test_workload.py",
    "mlt.simulation.switch_port": "python/switch_configs/test_switch_simulator.py",
    "mlt.switch_configs.": "python/switch_configs/test_generator.py",
    "mlt.switch_configs.capabilities": "python/switch_configs/test_switch_configs_plan.py",
    "mlt.switch_configs.derive": "python/switch_configs/test_burst_model.py",
    "mlt.switch_configs.model_layers": "python/switch_configs/test_thresholds.py",
    "mlt.switch_configs.queue_model": "python/switch_configs/test_thresholds.py",
    "mlt.switch_configs.queue_simulation": "python/switch_configs/test_thresholds.py",
    "mlt.switch_configs.target": "python/switch_configs/test_switch_undo.py",
    "mlt.switch_configs.telemetry": "python/switch_configs/test_counter_check.py",
    "mlt.switch_configs.threshold_check": "python/switch_configs/test_burst_model.py",
    "mlt.switch_configs.validators.": "python/switch_configs/test_switch_faults.py",
    "mlt.switch_configs.vendors.linux_ebpf": "python/testbed/test_testbed_proofs.py",
    "mlt.switch_configs.vendors.linux_switchdev": "python/switch_configs/test_switch_linux.py",
    "mlt.switch_configs.vendors.linux_tc": "python/switch_configs/test_switch_linux.py",
    "mlt.switch_configs.vendors.openconfig": "python/switch_configs/test_openconfig.py",
    "mlt.switch_configs.vendors.sonic.": "python/switch_configs/test_switch_sonic.py",
    "mlt.switch_push.": "python/switch_push/test_push_protocols.py",
    "mlt.switch_push.doctor": "python/switch_push/test_push_counters.py",
    "mlt.switch_push.statements": "python/switch_push/test_by_napalm.py",
    "mlt.switch_push.testbed": "python/switch_push/test_push_linux.py",
    "mlt.tensorflow.": "plugins/tensorflow/test_tensorflow.py",
    "mlt.tensorflow.byteps.": "plugins/tensorflow/test_tensorflow_byteps.py",
    "mlt.testbed.": "python/testbed/test_testbed_lifecycle.py",
    "mlt.testbed.counters": "python/testbed/test_testbed_proofs.py",
    "mlt.testbed.impairments": "python/testbed/test_testbed_links.py",
    "mlt.testbed.layout": "python/testbed/test_testbed_topology.py",
    "mlt.testbed.programs": "python/testbed/test_testbed_command.py",
    "mlt.testbed.requirements": "python/testbed/test_testbed_command.py",
    "mlt.testbed.switch_port": "python/testbed/test_testbed_proofs.py",
    "mlt.torch.byteps.": "plugins/torch/test_horovod.py",
    "mlt.torch.sparse": "plugins/torch/test_process_group.py",
    "mlt.torch.horovod.": "plugins/torch/test_horovod.py",
    "mlt.torch_autoload": "plugins/torch/test_contexts.py",
}


def mirrored(name: str) -> list[Path]:
    """The test files that have the name of the module ``name``."""
    parts = [part.lstrip("_") for part in name.split(".")[1:]]
    if parts[0] in ("mxnet", "nccl", "tensorflow", "torch"):
        folder = (TESTS / "plugins").joinpath(*(parts[:-1] or parts))
    else:
        folder = (TESTS / "python").joinpath(*(parts[:-1] or ["transport"]))
    found = (folder / f"test_{parts[-1]}.py", folder / f"test_{folder.name}_{parts[-1]}.py")
    return [path for path in found if path.exists()]


def is_source(path: Path) -> bool:
    """Whether a module has code of its own: a package that only re-exports has none."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    own = [node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return path.name != "__init__.py" or bool({*own} - {"__getattr__", "__dir__"})


def sources() -> list[str]:
    return sorted(name for name, path in MODULES.items() if name.startswith("mlt.") and is_source(path))


def key_of(name: str) -> str | None:
    """The longest key of ``TESTED_BY`` for the module ``name``."""
    keys = [key for key in TESTED_BY if key in (name, f"{name}.") or (key.endswith(".") and name.startswith(key))]
    return max(keys, key=len, default=None)


@cache
def uses(path: Path) -> frozenset[str | Path]:
    """Modules, and files beside it, that a file imports, or names as what another process or a registry shall load."""
    text = path.read_text(encoding="utf-8")
    found: set[str | Path] = {used for _, used in imports(str(path), text)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {node.value} & MODULES.keys() - {"mlt"}
            if node.value.endswith(".py"):
                found |= {name for name, one in MODULES.items() if str(one) == f"{path.parent}/{node.value}"}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            named = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            beside = [folder / f"{module}.py" for module in named for folder in (path.parent, TESTS / "python")]
            found |= {one for one in beside if one.exists()}
        elif isinstance(node, ast.Attribute) and node.attr == "__path__":  # a registry loads every module of a package
            packages = [name for name in found if isinstance(name, str) and name.endswith(ast.unparse(node.value))]
            found |= {name for name in MODULES if name.startswith(tuple(f"{package}." for package in packages))}
    # The package loads what its table names on first use: ``mlt.Context`` is mlt.context.
    if "mlt" in found:
        found |= {name for name in MODULES if name.count(".") == 1} | uses(MODULES["mlt"])
    return frozenset(found)


@cache
def reach(test: Path) -> set[str]:
    """Every module that ``test`` can come to."""
    seen: set[str | Path] = set()
    waiting: list[str | Path] = [test]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            path = one if isinstance(one, Path) else MODULES.get(one)
            waiting += uses(path) if path else []
    return {one for one in seen if isinstance(one, str)}


@pytest.mark.parametrize("name", sources())
def test_module__has_a_test_of_its_name_or_is_in_tested_by(name: str) -> None:
    key = key_of(name)
    if mirrored(name):
        assert key is None or key.endswith("."), f"{name} has {mirrored(name)[0].name}: TESTED_BY should not name it"
        tests = mirrored(name)
    else:
        assert key is not None, f"{name} has no test file of its name; name in TESTED_BY the file that tests it"
        tests = [TESTS / TESTED_BY[key]]
    for test in tests:
        assert name in reach(test), f"{test} never comes to {name}"


def test_tested_by__has_no_unused_key() -> None:
    assert {key for name in sources() if not mirrored(name) and (key := key_of(name))} == TESTED_BY.keys()
