"""Makes the reference of what a backend imports, from signatures and docstrings."""

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from typing import Any, Final

from docs.generate.markdown import NOTE, first_paragraph, linked, table

MODULES: Final = ("inflight.producer",)
"""Whose `__all__` a backend imports by `from inflight import …`."""

_HEAD: Final = f"""# Python API

{NOTE}

What `from inflight import …` has. [producer.md](../guides/producer.md) explains it with examples.
"""


def page() -> str:
    """Returns the page."""
    named = {name: getattr(import_module(module), name) for module in MODULES for name in import_module(module).__all__}
    errors = {name: thing for name, thing in named.items() if isinstance(thing, type) and issubclass(thing, Exception)}
    parts = [_HEAD]
    for name in sorted(set(named) - set(errors), key=lambda name: (name not in _FIRST, name)):
        parts += _of(name, named[name])
    parts.append("\n## Errors\n")
    parts.append("All of them are an `InflightError`. The text of each says what to do next.\n")
    parts.append(
        table(("error", "meaning"), [(f"`{name}`", first_paragraph(thing.__doc__)) for name, thing in sorted(errors.items())])
    )
    for name, thing in sorted(errors.items()):
        rest = (inspect.getdoc(thing) or "").partition("\n\n")[2]
        if rest:
            parts.append(f"\n### {name}\n\n{_text(rest)}")
    return "\n".join(parts).rstrip() + "\n"


_FIRST: Final = ("Producer",)


def _of(name: str, thing: Any) -> Iterator[str]:
    yield f"\n## {name}\n"
    if isinstance(thing, type) and issubclass(thing, Enum):
        yield f"{_text(inspect.getdoc(thing) or '')}\n"
        yield table(("name", "value"), [(f"`{member.name}`", f"`{member.value}`") for member in thing])
        return
    yield f"```python\n{_signature(name, thing)}\n```\n\n{_text(inspect.getdoc(thing) or '')}"
    for method_name, method in vars(thing).items():
        if inspect.isfunction(method) and not method_name.startswith("_") and method.__doc__:
            yield f"\n### {name}.{method_name}\n\n```python\n{_signature(method_name, method)}\n```\n\n{_text(inspect.getdoc(method) or '')}"


def _signature(name: str, thing: Any) -> str:
    signature = inspect.signature(thing)
    parameters = [str(parameter) for parameter in signature.parameters.values() if parameter.name != "self"]
    returns = (
        ""
        if isinstance(thing, type) or signature.return_annotation is inspect.Signature.empty
        else f" -> {_type(signature.return_annotation)}"
    )
    kinds = [parameter.kind for parameter in signature.parameters.values() if parameter.name != "self"]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        parameters.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    parameters = [re.sub(r"\b(?:[a-z_]+\.)+([A-Z])", r"\1", parameter).replace("'", "") for parameter in parameters]
    parameters = [re.sub(r"<\w*Registry object at \w+>", "REGISTRY", parameter) for parameter in parameters]
    line = f"{name}({', '.join(parameters)}){returns}"
    if len(line) <= 100:
        return line
    inside = "".join(f"    {parameter},\n" for parameter in parameters)
    return f"{name}(\n{inside}){returns}"


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]+\.)+([A-Z])", r"\1", text).strip("'\"")


def _text(document: str) -> str:
    """Returns a docstring as Markdown. A paragraph `name: meaning. other: meaning.` becomes a list, and so does `Args:`."""
    paragraphs = []
    for paragraph in document.split("\n\n"):
        lines = paragraph.splitlines()
        if lines and re.fullmatch(r"(Args|Returns|Raises|Attributes|Yields):", lines[0]):
            paragraphs.append(f"**{lines[0]}**\n\n" + "\n".join(_items(lines[1:])))
        elif (
            len(
                found := re.split(
                    r"(?:^|(?<=[.;] ))(?=(?!default|one:)(?:[a-z_]\w*(?:, | … ))*[a-z_]\w*: )", " ".join(paragraph.split())
                )
            )
            > 1
        ):
            paragraphs.append(
                "\n".join(
                    f"- {_named(item.strip())}" if _IS_NAMED.match(item) else f"{item.strip()}\n"
                    for item in found
                    if item.strip()
                )
            )
        else:
            paragraphs.append(" ".join(paragraph.split()))
    return linked("\n\n".join(paragraphs))


_IS_NAMED: Final = re.compile(r"((?:[a-z_]\w*(?:, | … ))*[a-z_]\w*): ")


def _named(item: str) -> str:
    return _IS_NAMED.sub(
        lambda found: ", ".join(f"`{name}`" for name in re.split(r", ", found[1])).replace(" … ", "` … `") + ": ", item, count=1
    )


def _items(lines: list[str]) -> Iterator[str]:
    item = ""
    for line in lines:
        if re.match(r"    \S", line) or not item:
            if item:
                yield item
            item = f"- {_named(line.strip())}"
        else:
            item += f" {line.strip()}"
    if item:
        yield item
