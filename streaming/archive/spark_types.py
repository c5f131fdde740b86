"""Derives the schema for Spark's `from_json` from the struct that writes the JSON of a record (state/records)."""

from collections.abc import Mapping

import msgspec
from msgspec import inspect

from state.records.record import IS_TIME


def spark_types(struct: type[msgspec.Struct], *fields: str) -> dict[str, str]:
    """Returns names in the JSON with types of Spark, in the order of the struct. fields: only these; none = all.

    Raises TypeError for a field that no struct has, or of a type that the archive does not read.
    """
    known = inspect.type_info(struct)
    assert isinstance(known, inspect.StructType)
    unknown = set(fields) - {field.name for field in known.fields}
    if unknown:
        raise TypeError(f"{struct.__name__} has no {', '.join(sorted(unknown))}")
    return {field.encode_name: _spark_type(field.type) for field in known.fields if not fields or field.name in fields}


def struct_of(types: Mapping[str, str]) -> str:
    """Returns the DDL of a struct."""
    return f"struct<{', '.join(f'{name}: {kind}' for name, kind in types.items())}>"


def _spark_type(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata():
            return "bigint" if (kind.extra or {}).get(IS_TIME) else _spark_type(kind.type)
        case inspect.UnionType():
            (one,) = (member for member in kind.types if not isinstance(member, inspect.NoneType))
            return _spark_type(one)
        case inspect.StrType() | inspect.EnumType():
            return "string"
        case inspect.IntType():
            return "int"
        case inspect.BoolType():
            return "boolean"
        case _:
            raise TypeError(f"{type(kind).__name__}: the archive reads texts, numbers, times, and true or false")
