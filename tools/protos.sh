#!/bin/sh
# Generates the gRPC code from protos/ into FOLDER, as modules of the package cpupool.api.
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
"$venv/bin/python" -m grpc_tools.protoc -Icpupool/api=protos \
    --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" \
    cpupool/api/deviceplugin.proto cpupool/api/podresources.proto
cp "$out"/cpupool/api/* "$1"
