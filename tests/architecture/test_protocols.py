"""The generated code in cpupool/api says what protos/ say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor

from cpupool.api import deviceplugin_pb2, podresources_pb2

PROTOS = Path(__file__).parents[2] / "protos"
FIELD = re.compile(r"^  (repeated |map<string, )?(\w+)>? (\w+) = (\d+);$", re.MULTILINE)
METHOD = re.compile(r"^  rpc (\w+)\((\w+)\) returns \((stream )?(\w+)\) \{\}$", re.MULTILINE)
SCALARS = {
    "string": FieldDescriptor.TYPE_STRING,
    "bool": FieldDescriptor.TYPE_BOOL,
    "int32": FieldDescriptor.TYPE_INT32,
    "int64": FieldDescriptor.TYPE_INT64,
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
    ],
)
def test_the_generated_code_is_current(name: str, generated: FileDescriptor) -> None:
    messages = written(name, "message")
    services = written(name, "service")

    assert set(messages) == set(generated.message_types_by_name)
    assert set(services) == set(generated.services_by_name)
    for message, block in messages.items():
        found = {
            (field.name, field.number, kind(field))
            for field in generated.message_types_by_name[message].fields
        }
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


def kind(field: FieldDescriptor) -> str:
    """Spell a field's type as the proto file does."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return f"map {scalar(field.message_type.fields_by_name['value'])}"
    return f"repeated {scalar(field)}" if field.is_repeated else scalar(field)


def scalar(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        return field.message_type.name
    return next(name for name, number in SCALARS.items() if number == field.type)
