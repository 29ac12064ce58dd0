"""Parts of a JSON file as dataclasses that say of each key how it is read: tolerantly, or as the file's structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, field, fields
from typing import Any, Self, TypeVar

T = TypeVar("T")
Reader = Callable[[Any], Any]


class DamagedError(ValueError):
    """A part of a file has a structure that is never written. The message is its key."""


class Part:
    """A table of the file; subclasses are frozen dataclasses whose fields are declared by `key` or `required`."""

    @classmethod
    def read(cls, value: Any) -> Self | None:
        """Read a table; None where it is not one, or where a required key is missing or malformed."""
        if not isinstance(value, Mapping):
            return None
        part = cls()
        for each in _fields(cls):
            if each.name in value:
                try:
                    object.__setattr__(part, each.name, each.metadata["read"](value[each.name]))
                except DamagedError:
                    raise DamagedError(each.name) from None
        missing = any(getattr(part, each.name) is None for each in _fields(cls) if each.metadata["required"])
        return None if missing else part

    def to_json(self) -> Any:
        """Return tables, lists and values; keys without a value are omitted unless they are always written."""
        values = {each: getattr(self, each.name) for each in _fields(type(self))}
        return {
            each.name: as_json(value)
            for each, value in values.items()
            if value not in (None, {}, []) or each.metadata["always"]
        }


def _fields(kind: type[Part]) -> tuple[Field[Any], ...]:
    return fields(kind)  # type: ignore[arg-type]


def as_json(value: Any) -> Any:
    if isinstance(value, Part):
        return value.to_json()
    if isinstance(value, Mapping):
        return {name: as_json(entry) for name, entry in value.items()}
    return [as_json(entry) for entry in value] if isinstance(value, list | tuple) else value


def key(read: Reader, default: Callable[[], Any] = lambda: None, always: bool = False) -> Any:
    """Declare a key that may be missing. It is written where it holds a value, or `always`."""
    return field(default_factory=default, metadata={"read": read, "always": always, "required": False})


def required(read: Reader) -> Any:
    """Declare a key without which the table is omitted."""
    return field(default=None, metadata={"read": read, "always": True, "required": True})


# tolerant readers: a malformed value becomes None, and is left out of tables and lists


def as_number(value: Any) -> float | None:
    """Return a finite number, or None: JSON written by Python may hold null and NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 1e300 else None


def as_text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def as_bool(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def as_pair(value: Any) -> tuple[float, float] | None:
    """Return a list of two numbers as a tuple."""
    numbers = [number for entry in value if (number := as_number(entry)) is not None] if is_list(value) else []
    return (numbers[0], numbers[1]) if len(numbers) == 2 == len(value) else None


def table_of(read: Callable[[Any], T | None]) -> Callable[[Any], dict[str, T]]:
    """Return a reader of tables, without the entries that `read` rejects."""

    def read_table(value: Any) -> dict[str, T]:
        entries = value.items() if isinstance(value, Mapping) else ()
        return {str(name): kept for name, entry in entries if (kept := read(entry)) is not None}

    return read_table


def list_of(read: Callable[[Any], T | None]) -> Callable[[Any], list[T]]:
    """Return a reader of lists, without the entries that `read` rejects."""
    return lambda value: [kept for entry in value if (kept := read(entry)) is not None] if is_list(value) else []


# strict readers: a malformed value makes the file damaged


def strict(fits: Callable[[Any], bool], read: Reader = lambda value: value) -> Reader:
    def checked(value: Any) -> Any:
        if not fits(value):
            raise DamagedError
        return read(value)

    return checked


def is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_table(value: Any) -> bool:
    return isinstance(value, dict)


def is_list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def is_table_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(map(fits, value.values()))
