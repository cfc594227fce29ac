#!/usr/bin/env bash
# Installs the switch validators that need a separate environment, in build/switch-validators (or
# the folder in MLT_SWITCH_VALIDATORS): hier-config (its pins conflict with others), Mellanox's Ansible modules, the
# NX-OS YANG model. "short" installs hier-config alone (seconds, a few MB); without it about 45 MB are downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."
form="${1:-full}"
case "$form" in short | full) ;; *) echo "usage: $0 [short|full]" >&2; exit 2 ;; esac
home="${MLT_SWITCH_VALIDATORS:-build/switch-validators}"
mkdir -p "$home"
[ -x "$home/venv/bin/python" ] || python3 -m venv "$home/venv"
"$home/venv/bin/python" -c 'import hier_config' 2>/dev/null || "$home/venv/bin/pip" install -q 'hier-config==3.7.1'
[ "$form" = short ] && exit 0

"$home/venv/bin/python" -c 'import ansible' 2>/dev/null || "$home/venv/bin/pip" install -q 'ansible-core>=2.15'
if [ ! -d "$home/collections/ansible_collections/mellanox" ]; then
  # 6.7.0 is the last ansible that contains mellanox.onyx.
  "$home/venv/bin/pip" download -q --no-deps -d "$home" 'ansible==6.7.0'
  "$home/venv/bin/python" - "$home" <<'PY'
import pathlib, sys, zipfile
home = pathlib.Path(sys.argv[1])
wheel = next(home.glob("ansible-6.7.0-*.whl"))
wanted = ("ansible_collections/mellanox/onyx/", "ansible_collections/ansible/")
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(home / "collections", [name for name in archive.namelist() if name.startswith(wanted)])
wheel.unlink()
PY
fi
if [ ! -d "$home/nxos-yang" ]; then
  "$home/venv/bin/pip" download -q --no-deps --no-binary :all: -d "$home" 'ydk-models-cisco-nx-os==9.3.1'
  mkdir "$home/nxos-yang.part"
  tar xzf "$home"/ydk-models-cisco-nx-os-9.3.1.tar.gz -C "$home/nxos-yang.part" --strip-components=5 --wildcards '*/_yang/*'
  mv "$home/nxos-yang.part" "$home/nxos-yang"
  rm "$home"/ydk-models-cisco-nx-os-9.3.1.tar.gz
fi
echo "installed in $home; yanglint itself comes from the system package libyang2-tools"
