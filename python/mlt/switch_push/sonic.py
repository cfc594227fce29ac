"""SONiC over SSH: files generated for the running CONFIG_DB, applied by ``config apply-patch`` or their own script.

The undo was generated for the configuration that was running and restores it alone; the previous files are not applied
again.
"""

from __future__ import annotations

from mlt.switch_configs.counters import QueueCounters
from mlt.switch_configs.generator import Generated
from mlt.switch_configs.plan import Plan
from mlt.switch_configs.registry import target as find_target
from mlt.switch_configs.target import code_lines
from mlt.switch_push.on_shell import ShellDevice

_CHECKPOINT = "mlt-before"


class SonicSwitch(ShellDevice):
    """``generate --running`` with the switch's current configuration; SONiC's own tools validate, apply and undo."""

    against_running = True

    def running(self) -> str:
        return self._root("sonic-cfggen -d --print-data")

    def preview(self, generated: Generated) -> str:
        if "patch.json" not in generated.apply:
            loaded = [name for name in ("kept_db.json", "config_db.json") if name in generated.apply]
            script = [line for _, line in code_lines(generated.apply.get("apply.sh", ""), "#")]
            return "\n".join([*script, *(f"==> {name} <==\n{generated.apply[name]}" for name in loaded)])
        self._prepare()
        self._put(f"{self._folder}/new/patch.json", generated.apply["patch.json"])
        output = self._root(f"config apply-patch --dry-run {self._folder}/new/patch.json")
        return f"{generated.apply['patch.json']}{output}"

    def _apply_command(self, folder: str, generated: Generated) -> str:
        return self._apply_text(folder)

    def _apply_text(self, folder: str) -> str:
        return (
            f"config delete-checkpoint {_CHECKPOINT} >/dev/null 2>&1 || true\nconfig checkpoint {_CHECKPOINT}\n"
            f"if [ -e {folder}/apply.sh ]; then cd {folder} && sh ./apply.sh; "
            f"else config apply-patch {folder}/patch.json; fi && touch {folder}/applied"
        )

    def _undo_command(self, folder: str) -> str:
        # After a rejected, perhaps partial apply, the undo does not fit: use the checkpoint.
        return (
            f"if [ ! -e {folder}/applied ]; then config rollback {_CHECKPOINT}; "
            f"elif [ -e {folder}/undo.sh ]; then (cd {folder} && sh ./undo.sh); "
            f"else config apply-patch {folder}/undo-patch.json; fi"
        )

    def counters(self, plan: Plan) -> list[QueueCounters]:
        return find_target("sonic").parse_counters(self._root("show queue wredcounters; show queue counters"))
