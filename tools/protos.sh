#!/bin/sh
# Generates the code of every file of protos/ into FOLDER, as modules of the package cpupool.api;
# gRPC stubs only of those that declare services. The messages of the tests' own CRI client are made
# where their file is.
#
#   tools/protos.sh FOLDER
#
# The generator is the oldest supported grpcio-tools (dependency group `protos`): stubs refuse to
# load under a grpcio older than their generator. It gets a virtual environment of its own.
set -eu

venv=.venv-protos
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

if [ ! -x "$venv/bin/python" ]; then
    "${PYTHON3:-.venv/bin/python}" -m venv "$venv"
    "$venv/bin/python" -m pip --quiet install --upgrade 'pip>=25.1'
    "$venv/bin/python" -m pip --quiet install --group protos
fi
generate() {
    "$venv/bin/python" -m grpc_tools.protoc -Icpupool/api=protos "$@"
}
for proto in protos/*.proto; do
    as_module=cpupool/api/${proto#protos/}
    generate --python_out="$out" --pyi_out="$out" "$as_module"
    if grep -q '^service ' "$proto"; then
        generate --grpc_python_out="$out" "$as_module"
    fi
done
cp "$out"/cpupool/api/* "$1"
"$venv/bin/python" -m grpc_tools.protoc -I. --python_out=. --pyi_out=. tests/containerd/cri.proto
