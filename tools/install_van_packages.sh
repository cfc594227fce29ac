#!/usr/bin/env bash
# Installs what the tree of ps-lite in $1 needs to be built: ZMQ, and for dmlc's tree protobuf.
set -euo pipefail

missing=()
[ -e /usr/include/zmq.h ] || missing+=(libzmq3-dev)
if [ -e "$1/src/meta.proto" ]; then
  command -v protoc >/dev/null || missing+=(protobuf-compiler)
  [ -e /usr/include/google/protobuf/message_lite.h ] || missing+=(libprotobuf-dev)
fi
[ ${#missing[@]} -eq 0 ] && exit 0
sudo=()
if [ "$(id -u)" -ne 0 ]; then sudo=(sudo); fi
export DEBIAN_FRONTEND=noninteractive
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"
