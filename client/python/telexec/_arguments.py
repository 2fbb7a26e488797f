"""Errors of arguments say which argument it is. The extension module only adds a note of that, which `str` leaves out."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from ._errors import Invalid

#: As pyo3 writes it.
_NOTE = re.compile(r"while processing '(\w+)'")
#: Of whichever function was called inside.
_UNEXPECTED = re.compile(r"[\w.]+(\(\) got an unexpected keyword argument .*)")

AnyT = TypeVar("AnyT")
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def wrong(keyword: str, expected: str, value: object) -> TypeError:
    return TypeError(f"argument '{keyword}': expected {expected}, not {type(value).__name__}")


def named(function: FunctionT) -> FunctionT:
    """A function whose errors name the argument."""
    wrapped: Any
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapped(*arguments: Any, **keywords: Any) -> Any:
            with _naming(function.__qualname__):
                return await function(*arguments, **keywords)
    else:

        @functools.wraps(function)
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            with _naming(function.__qualname__):
                return function(*arguments, **keywords)

    return cast(FunctionT, wrapped)


def all_named(kind: type[AnyT]) -> type[AnyT]:
    """A class with such methods."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, named(method))
    return kind


@contextlib.contextmanager
def _naming(function: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError, OverflowError) as error:
        if unexpected := _UNEXPECTED.fullmatch(str(error)):
            raise TypeError(f"{function}{unexpected[1]}") from None
        notes = map(_NOTE.fullmatch, getattr(error, "__notes__", ()))
        keyword = next((note[1] for note in notes if note), None)
        if keyword is None:
            raise
        if isinstance(error, TypeError):
            raise TypeError(f"argument '{keyword}': {error}") from None
        raise Invalid(f"{keyword}: {error}") from None
