"""Writes docs/horovod-names.md: which of Horovod's and BytePS's names each plugin has, read from its ``__all__``.

    python tools/horovod_names.py            # writes the page
    python tools/horovod_names.py --check    # fails if it is not that of the code

Nothing is imported, so no framework needs to be installed.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "horovod-names.md"
API = ROOT / "python" / "mlt" / "_named" / "api.py"
BASICS = """
    ccl_built cross_rank cross_size cuda_built ddl_built gloo_built gloo_enabled init is_homogeneous is_initialized
    local_rank local_size mpi_built mpi_enabled mpi_threads_supported nccl_built rank rocm_built shutdown size
    start_timeline stop_timeline
"""
SETS = "ProcessSet add_process_set global_process_set remove_process_set"
OPS = "Adasum Average Max Min Product Sum"
BYTEPS = "init local_rank local_size rank resume shutdown size suspend"
# Module of Horovod (0.28) or BytePS (its main branch) -> mlt's module, its file, and the other's public names.
MODULES = {
    "horovod.torch": (
        "mlt.torch.horovod",
        "plugins/torch/horovod/__init__.py",
        f"""
    {BASICS} {SETS} {OPS} Compression DistributedOptimizer HorovodInternalError SyncBatchNorm allgather allgather_async
    allgather_object allreduce allreduce_ allreduce_async allreduce_async_ alltoall alltoall_async barrier broadcast
    broadcast_ broadcast_async broadcast_async_ broadcast_object broadcast_optimizer_state broadcast_parameters elastic
    grouped_allgather grouped_allgather_async grouped_allreduce grouped_allreduce_ grouped_allreduce_async
    grouped_allreduce_async_ grouped_reducescatter grouped_reducescatter_async join poll reducescatter
    reducescatter_async sparse_allreduce_async synchronize
""",
    ),
    "horovod.tensorflow": (
        "mlt.tensorflow",
        "plugins/tensorflow/__init__.py",
        f"""
    {BASICS} {SETS} {OPS} Compression DistributedGradientTape DistributedOptimizer SyncBatchNormalization allgather
    allgather_object allreduce alltoall barrier broadcast broadcast_ broadcast_global_variables broadcast_object
    broadcast_object_fn broadcast_variables elastic grouped_allgather grouped_allreduce grouped_reducescatter join
    local_rank_op local_size_op process_set_included_op rank_op reducescatter size_op
""",
    ),
    "horovod.tensorflow.keras": (
        "mlt.tensorflow.keras",
        "plugins/tensorflow/keras/__init__.py",
        f"""
    {BASICS} {SETS} {OPS} Compression DistributedOptimizer PartialDistributedOptimizer allgather allreduce broadcast
    broadcast_global_variables callbacks elastic load_model reducescatter
""",
    ),
    "horovod.tensorflow.keras.callbacks": (
        "mlt.tensorflow.keras.callbacks",
        "plugins/tensorflow/keras/callbacks.py",
        """
    BestModelCheckpoint BroadcastGlobalVariablesCallback LearningRateScheduleCallback LearningRateWarmupCallback
    MetricAverageCallback
""",
    ),
    "horovod.tensorflow.elastic": (
        "mlt.tensorflow.elastic",
        "plugins/tensorflow/elastic.py",
        "TensorFlowKerasState TensorFlowState run",
    ),
    "horovod.mxnet": (
        "mlt.mxnet",
        "plugins/mxnet/__init__.py",
        f"""
    ccl_built cross_rank cross_size cuda_built ddl_built gloo_built gloo_enabled init is_initialized local_rank
    local_size mpi_built mpi_enabled mpi_threads_supported nccl_built rank rocm_built shutdown size start_timeline
    stop_timeline {SETS} {OPS} Compression DistributedOptimizer DistributedTrainer allgather allgather_object allreduce
    allreduce_ alltoall broadcast broadcast_ broadcast_object broadcast_parameters grouped_allgather grouped_allreduce
    grouped_allreduce_ grouped_reducescatter reducescatter
""",
    ),
    "horovod.torch.elastic": (
        "mlt.torch.horovod.elastic",
        "plugins/torch/horovod/elastic.py",
        "ElasticSampler TorchState run",
    ),
    "byteps.torch": (
        "mlt.torch.byteps",
        "plugins/torch/byteps/__init__.py",
        f"""
    {BYTEPS} Compression DistributedOptimizer broadcast_object broadcast_optimizer_state broadcast_parameters
    byteps_push_pull byteps_torch_set_num_grads cross_barrier declare get_pushpull_speed parallel poll push_pull
    push_pull_async push_pull_async_inplace push_pull_group_sync_inplace push_pull_inplace synchronize
""",
    ),
    "byteps.torch.cross_barrier": (
        "mlt.torch.byteps.cross_barrier",
        "plugins/torch/byteps/cross_barrier.py",
        """
    init local_rank local_size rank shutdown size Compression CrossBarrier broadcast_optimizer_state
    broadcast_parameters byteps_push_pull poll synchronize
""",
    ),
    "byteps.tensorflow": (
        "mlt.tensorflow.byteps",
        "plugins/tensorflow/byteps/__init__.py",
        f"""
    {BYTEPS} Adasum Average BroadcastGlobalVariablesHook Compression DistributedGradientTape DistributedOptimizer Sum
    broadcast broadcast_global_variables broadcast_variables distribute get_pushpull_speed push_pull
""",
    ),
    "byteps.tensorflow.keras": (
        "mlt.tensorflow.byteps.keras",
        "plugins/tensorflow/byteps/keras/__init__.py",
        """
    init local_rank local_size rank shutdown size Compression DistributedOptimizer broadcast
    broadcast_global_variables callbacks load_model push_pull
""",
    ),
    "byteps.tensorflow.keras.callbacks": (
        "mlt.tensorflow.byteps.keras.callbacks",
        "plugins/tensorflow/byteps/keras/callbacks.py",
        """
    BroadcastGlobalVariablesCallback LearningRateScheduleCallback LearningRateWarmupCallback MetricAverageCallback
""",
    ),
    "byteps.mxnet": (
        "mlt.mxnet.byteps",
        "plugins/mxnet/byteps/__init__.py",
        f"""
    {BYTEPS} Compression DistributedOptimizer DistributedTrainer broadcast_parameters byteps_declare_tensor
    byteps_push_pull
""",
    ),
}
HEAD = """# Horovod's and BytePS's names

Which public names of Horovod 0.28 and of BytePS each module has, and what it has beside them. The names of
`byteps.torch.ops` count as those of `byteps.torch`; `byteps.keras` has the names of `byteps.tensorflow.keras`.
`tools/horovod_names.py` writes this page from the code. [horovod.md](horovod.md), [tensorflow.md](tensorflow.md) and
[mxnet.md](mxnet.md) say what differs in meaning.

| their module | mlt's module | names there | missing | mlt's own |
|---|---|---|---|---|
"""


def public_names(path: Path) -> set[str]:
    """``__all__`` of a module, which may add that of ``API``; without one its classes and functions without an
    underscore."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names |= set(ast.literal_eval(node.value))
        elif isinstance(node, ast.AugAssign) and ast.unparse(node.target) == "__all__":
            assert ast.unparse(node.value) == "api.__all__", path
            names |= public_names(API)
    if names:
        return names
    defined = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return {name for name in defined if not name.startswith("_")}


def page() -> str:
    """The text of the page."""
    rows = []
    for theirs, (ours, file, text) in MODULES.items():
        wanted, found = set(text.split()), public_names(ROOT / file)
        cells = [f"{len(wanted & found)} of {len(wanted)}", _listed(wanted - found), _listed(found - wanted)]
        rows.append(f"| `{theirs}` | `{ours}` | {' | '.join(cells)} |\n")
    lists = [
        f"\n## {theirs}\n\nIn `{ours}`: {_listed(set(text.split()) & public_names(ROOT / file))}.\n"
        for theirs, (ours, file, text) in MODULES.items()
    ]
    return HEAD + "".join(rows) + "".join(lists)


def _listed(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "none"


def main() -> int:
    if "--check" in sys.argv[1:]:
        if PAGE.read_text(encoding="utf-8") != page():
            print(f"{PAGE.relative_to(ROOT)} is not that of the code: run python tools/horovod_names.py")
            return 1
        return 0
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
