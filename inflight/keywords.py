"""Names the right keyword argument to a caller that has mistyped it. Many options pass through several functions."""

import functools
import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")


def check_keywords(called: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises TypeError for a keyword argument that is not known.

    Args:
        called: What the caller sees, such as `Producer.send`.
    """
    known = sorted(known)
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(known)}"
            raise TypeError(f"{called} has no argument {name!r}: {hint}")


def checked(*passed_on_to: Callable[..., Any]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorates a method whose keyword arguments are its own and those of `passed_on_to`. Others raise TypeError."""

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        parameters = [each for function in (method, *passed_on_to) for each in inspect.signature(function).parameters.values()]
        called_as = method.__qualname__.removesuffix(".__init__")
        known = frozenset(each.name for each in parameters if each.name != "self" and each.kind is not each.VAR_KEYWORD)

        def check(kwargs: dict[str, Any]) -> None:
            if not kwargs.keys() <= known:
                check_keywords(called_as, kwargs, known)

        if inspect.iscoroutinefunction(method):

            @functools.wraps(method)
            async def called_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                check(kwargs)
                return await method(*args, **kwargs)

            return cast(Callable[P, R], called_async)

        @functools.wraps(method)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            check(kwargs)
            return method(*args, **kwargs)

        return called

    return decorate
