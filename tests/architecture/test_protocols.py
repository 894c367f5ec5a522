"""The generated code in cpupool/api says what protos/ say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

from cpupool.api import (
    cri_pb2,
    deviceplugin_pb2,
    nri_pb2,
    pluginregistration_pb2,
    podresources_pb2,
    resourceplugin_pb2,
    ttrpc_pb2,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from google.protobuf.descriptor import FileDescriptor

PROTOS = Path(__file__).parents[2] / "protos"
FIELD = re.compile(r"^  (repeated |map<\w+, )?(\w+)>? (\w+) = (\d+);$", re.MULTILINE)
METHOD = re.compile(r"^  rpc (\w+)\((\w+)\) returns \((stream )?(\w+)\) \{\}$", re.MULTILINE)
SCALARS = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
}


def written(name: str, kind: str) -> dict[str, str]:
    text = (PROTOS / f"{name}.proto").read_text()
    blocks = re.split(r"^(?=message |service )", text, flags=re.MULTILINE)[1:]
    return {
        head.split()[1]: block
        for block in blocks
        if (head := block.splitlines()[0]).startswith(kind)
    }


@pytest.mark.parametrize(
    ("name", "generated"),
    [
        ("deviceplugin", deviceplugin_pb2.DESCRIPTOR),
        ("podresources", podresources_pb2.DESCRIPTOR),
        ("pluginregistration", pluginregistration_pb2.DESCRIPTOR),
        ("resourceplugin", resourceplugin_pb2.DESCRIPTOR),
        ("cri", cri_pb2.DESCRIPTOR),
        ("nri", nri_pb2.DESCRIPTOR),
        ("ttrpc", ttrpc_pb2.DESCRIPTOR),
    ],
)
def test_the_generated_code_is_current(name: str, generated: FileDescriptor) -> None:
    messages = written(name, "message")
    services = written(name, "service")

    assert set(messages) == set(generated.message_types_by_name)
    assert set(services) == set(generated.services_by_name)
    for message, block in messages.items():
        described = DescriptorProto()
        generated.message_types_by_name[message].CopyToProto(described)
        found = fields(described)
        asked = {
            (field, int(number), f"{(how or '').split('<')[0].strip()} {of}".strip())
            for how, of, field, number in FIELD.findall(block)
        }
        assert found == asked, message
    for service, block in services.items():
        methods = {
            (method.name, method.input_type.name, method.server_streaming, method.output_type.name)
            for method in generated.services_by_name[service].methods
        }
        assert methods == {
            (rpc, takes, bool(stream), gives) for rpc, takes, stream, gives in METHOD.findall(block)
        }


def fields(message: DescriptorProto) -> set[tuple[str, int, str]]:
    """Spell the fields of a message as the proto file does: name, number, type."""
    maps = {
        entry.name: next(scalar(field) for field in entry.field if field.name == "value")
        for entry in message.nested_type
        if entry.options.map_entry
    }
    return {(field.name, field.number, kind(field, maps)) for field in message.field}


def kind(field: FieldDescriptorProto, maps: Mapping[str, str]) -> str:
    name = scalar(field)
    if name in maps:
        return f"map {maps[name]}"
    return f"repeated {name}" if field.label == field.LABEL_REPEATED else name


def scalar(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return field.type_name.rpartition(".")[2]
    return next(name for name, number in SCALARS.items() if number == field.type)
