"""profile.proto as protobuf's own library reads it, made from the field numbers that pprof publishes; and what a profile holds, by its strings."""

import gzip
from collections import defaultdict
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_INT64, _UINT64, _BOOL, _STRING, _MESSAGE = 3, 4, 8, 9, 11  # FieldDescriptorProto.Type
# github.com/google/pprof/blob/main/proto/profile.proto; a star: repeated.
_MESSAGES = {
    "Profile": {
        "sample_type*": (1, "ValueType"), "sample*": (2, "Sample"), "mapping*": (3, "Mapping"), "location*": (4, "Location"),
        "function*": (5, "Function"), "string_table*": (6, _STRING), "drop_frames": (7, _INT64), "keep_frames": (8, _INT64),
        "time_nanos": (9, _INT64), "duration_nanos": (10, _INT64), "period_type": (11, "ValueType"), "period": (12, _INT64),
        "comment*": (13, _INT64), "default_sample_type": (14, _INT64),
    },
    "ValueType": {"type": (1, _INT64), "unit": (2, _INT64)},
    "Sample": {"location_id*": (1, _UINT64), "value*": (2, _INT64), "label*": (3, "Label")},
    "Label": {"key": (1, _INT64), "str": (2, _INT64), "num": (3, _INT64), "num_unit": (4, _INT64)},
    "Mapping": {
        "id": (1, _UINT64), "memory_start": (2, _UINT64), "memory_limit": (3, _UINT64), "file_offset": (4, _UINT64), "filename": (5, _INT64),
        "build_id": (6, _INT64), "has_functions": (7, _BOOL), "has_filenames": (8, _BOOL), "has_line_numbers": (9, _BOOL), "has_inline_frames": (10, _BOOL),
    },
    "Location": {"id": (1, _UINT64), "mapping_id": (2, _UINT64), "address": (3, _UINT64), "line*": (4, "Line"), "is_folded": (5, _BOOL)},
    "Line": {"function_id": (1, _UINT64), "line": (2, _INT64), "column": (3, _INT64)},
    "Function": {"id": (1, _UINT64), "name": (2, _INT64), "system_name": (3, _INT64), "filename": (4, _INT64), "start_line": (5, _INT64)},
}  # fmt: skip

Key = tuple[int | None, str, tuple[tuple[str, str, int, int], ...]]


def _profile_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="perftools.profiles", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            made = message.field.add(name=field.rstrip("*"), number=number, label=3 if field.endswith("*") else 1)
            made.type = _MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                made.type_name = f".perftools.profiles.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.profiles.Profile"))


PROFILE = _profile_class()


def parse(written: bytes) -> Any:
    """The message of a file, after the checks that pprof itself makes of one (profile.CheckValid)."""
    profile = PROFILE.FromString(gzip.decompress(written))
    assert profile.string_table[0] == "" and len(set(profile.string_table)) == len(profile.string_table)
    functions, locations = {each.id for each in profile.function}, {each.id for each in profile.location}
    assert 0 not in functions | locations and len(functions) == len(profile.function) and len(locations) == len(profile.location)
    for sample in profile.sample:
        assert len(sample.value) == len(profile.sample_type) and sample.location_id and locations >= set(sample.location_id)
    assert all(line.function_id in functions for each in profile.location for line in each.line)
    assert {each.mapping_id for each in profile.location} <= {each.id for each in profile.mapping}
    return profile


def samples(profile: Any) -> dict[Key, dict[str, int]]:
    """By (tid, thread's name, stack) the values by type: a stack has (name, file, line, first line) of each frame, the outermost first."""
    text = profile.string_table
    functions = {each.id: (text[each.name], text[each.filename], each.start_line) for each in profile.function}
    places = {}
    for each in profile.location:
        (line,) = each.line
        name, file, first = functions[line.function_id]
        places[each.id] = (name, file, line.line, first)
    found: dict[Key, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    types = [text[each.type] for each in profile.sample_type]
    for sample in profile.sample:
        labels = {text[label.key]: text[label.str] if label.str else label.num for label in sample.label}
        own = found[labels.get("tid"), labels["thread"], tuple(places[each] for each in reversed(sample.location_id))]
        for name, value in zip(types, sample.value, strict=True):
            own[name] += value
    return {key: dict(values) for key, values in found.items()}
