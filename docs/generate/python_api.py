"""Makes the reference of what a backend imports, from signatures and docstrings."""

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from typing import Annotated, Any, Final, get_origin, get_type_hints

import inflight
from docs.generate.markdown import NOTE, first_paragraph, linked, table

_HEAD: Final = f"""# Python API

{NOTE}

What `from inflight import …` has. [backend.md](../guides/backend.md) and [producer.md](../guides/producer.md) explain it with examples.
"""
_FIRST: Final = ("Producer", "AsyncProducer")
_NAMES: Final = r"(?:[a-z_]\w*(?:, | … ))*[a-z_]\w*"
_NAMED: Final = re.compile(rf"({_NAMES}): ")
_BEFORE_A_NAME: Final = re.compile(rf"(?:^|(?<=[.;] ))(?=(?!default|one:){_NAMES}: )")
_HEADING: Final = re.compile(r"(Args|Returns|Raises|Attributes|Yields):")
_WIDEST: Final = 100


def page() -> str:
    """Returns the page."""
    named = {name: getattr(package, name) for package in map(import_module, inflight._PUBLIC) for name in package.__all__}
    errors = {name: thing for name, thing in sorted(named.items()) if isinstance(thing, type) and issubclass(thing, Exception)}
    parts = [_HEAD]
    for name in sorted(named.keys() - errors.keys(), key=lambda name: (name not in _FIRST, name != "Producer", name)):
        parts += _described(name, named[name])
    rows = [(f"`{name}`", first_paragraph(error.__doc__)) for name, error in errors.items()]
    parts.append("\n## Errors\n\nEach is an `InflightError`, and its text says what to do next.\n")
    parts.append(table(("error", "meaning"), rows))
    for name, error in errors.items():
        if rest := (inspect.getdoc(error) or "").partition("\n\n")[2]:
            parts.append(f"\n### {name}\n\n{_markdown(rest)}")
    return "\n".join(parts).rstrip() + "\n"


def _described(name: str, thing: Any) -> Iterator[str]:
    yield f"\n## {name}\n"
    if issubclass(thing, Enum):
        yield f"{_markdown(inspect.getdoc(thing) or '')}\n"
        yield table(("name", "value"), [(f"`{member.name}`", f"`{member.value}`") for member in thing])
        return
    yield _documented(name, thing)
    if fields := list(_described_fields(thing)):
        yield "\n" + table(("field", "meaning"), fields)
    for method_name, method in vars(thing).items():
        if inspect.isfunction(method) and not method_name.startswith("_") and method.__doc__:
            yield f"\n### {name}.{method_name}\n\n{_documented(method_name, method)}"


def _documented(name: str, thing: Any) -> str:
    return f"```python\n{_signature(name, thing)}\n```\n\n{_markdown(inspect.getdoc(thing) or '')}"


def _described_fields(thing: type) -> Iterator[tuple[str, str]]:
    """Yields the fields whose types carry a description."""
    for name, hint in get_type_hints(thing, include_extras=True).items():
        for extra in getattr(hint, "__metadata__", ()):
            if getattr(extra, "description", None):
                yield f"`{name}`", extra.description


def _signature(name: str, thing: Any) -> str:
    signature = inspect.signature(thing)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    shown = [_parameter(parameter) for parameter in parameters]
    kinds = [parameter.kind for parameter in parameters]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    has_result = not isinstance(thing, type) and signature.return_annotation is not inspect.Signature.empty
    result = f" -> {_type(signature.return_annotation)}" if has_result else ""
    line = f"{name}({', '.join(shown)}){result}"
    if len(line) <= _WIDEST:
        return line
    return f"{name}(\n{''.join(f'    {parameter},{chr(10)}' for parameter in shown)}){result}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    kind = "" if parameter.annotation is inspect.Parameter.empty else f": {_type(parameter.annotation)}"
    if parameter.default is inspect.Parameter.empty:
        return f"{stars}{parameter.name}{kind}"
    default = re.sub(r"<[\w.]*Registry object at \w+>", "REGISTRY", repr(parameter.default)).replace("<factory>", "…")
    return f"{parameter.name}{kind} = {default}"


def _type(annotation: Any) -> str:
    if get_origin(annotation) is Annotated:
        annotation = annotation.__origin__
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"Annotated\[([^,\[\]]+), Meta\([^()]*\)\]", r"\1", text)
    text = re.sub(r"Optional\[([^\[\]]+)\]", r"\1 | None", text)
    return re.sub(r"\b(?:[a-z_]+\.)+([A-Z])", r"\1", text).replace("'", "")


def _markdown(document: str) -> str:
    """Returns a docstring as Markdown. A paragraph `name: meaning. other: meaning.` becomes a list, and so does `Args:`."""
    return linked("\n\n".join(map(_paragraph, document.split("\n\n"))))


def _paragraph(paragraph: str) -> str:
    heading, *lines = paragraph.splitlines() or [""]
    if _HEADING.fullmatch(heading):
        return f"**{heading}**\n\n" + "\n".join(_items(lines))
    text = " ".join(paragraph.split())
    pieces = [piece.strip() for piece in _BEFORE_A_NAME.split(text) if piece.strip()]
    if not any(map(_NAMED.match, pieces)):
        return text
    return "\n".join(_item(piece) if _NAMED.match(piece) else f"{piece}\n" for piece in pieces)


def _items(lines: list[str]) -> Iterator[str]:
    """Yields the lines of a list. A line that is indented further belongs to the one before it."""
    text = "\n".join(line.removeprefix("    ") for line in lines)
    yield from (_item(" ".join(item.split())) for item in re.split(r"\n(?=\S)", text))


def _item(text: str) -> str:
    def names(found: re.Match[str]) -> str:
        return re.sub(r"\w+", lambda name: f"`{name[0]}`", found[1]) + ": "

    return f"- {_NAMED.sub(names, text, count=1)}"
