#!/usr/bin/env bash
# Builds Horovod 0.28.1 with gloo from its source package, in an environment of its own: four minutes on two cores.
#
#   build.sh torch|mxnet|tensorflow ENVIRONMENT PACKAGES...      PACKAGES: the framework
set -euo pipefail
framework=$1 environment=$2
shift 2
python3 -m venv "$environment"
bin=$(cd "$environment/bin" && pwd)
"$bin/pip" install -q "$@" numpy "setuptools<80" wheel packaging cffi cloudpickle psutil pyyaml
sources=$environment/horovod-0.28.1
if [ ! -d "$sources" ]; then
  "$bin/pip" download -q --no-deps --no-build-isolation --no-binary horovod -d "$environment" horovod==0.28.1
  tar -xzf "$environment/horovod-0.28.1.tar.gz" -C "$environment"
fi
# Horovod asks for C++14, and the headers of torch 2.13 and TensorFlow 2.21 need C++17.
if [ "$framework" != mxnet ]; then
  sed -i 's/CMAKE_CXX_STANDARD 14/CMAKE_CXX_STANDARD 17/' "$sources"/CMakeLists.txt "$sources"/horovod/torch/CMakeLists.txt
fi
for other in TENSORFLOW PYTORCH MXNET MPI; do export "HOROVOD_WITHOUT_$other=1"; done
case $framework in
  torch) unset HOROVOD_WITHOUT_PYTORCH; export HOROVOD_WITH_PYTORCH=1 ;;
  *) unset "HOROVOD_WITHOUT_${framework^^}"; export "HOROVOD_WITH_${framework^^}=1" ;;
esac
export HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO MAKEFLAGS=-j$(nproc) PATH="$bin:$PATH"
"$bin/pip" install -q --no-deps --no-build-isolation "$(realpath "$sources")"
