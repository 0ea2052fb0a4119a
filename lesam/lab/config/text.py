"""Run configurations as JSON, and ``--set a.b=value`` overrides with conversion to the field's type."""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, cast

from lesam.lab.config.optimizer import OptimizerConfig, config_class
from lesam.lab.config.run import RunConfig, Scalar
from lesam.lab.config.suggest import unknown
from lesam.lab.config.task import TaskConfig, task_class
from lesam.lab.config.weights import settled

Record = TypeVar("Record")

FIXED = {
    "recipe": "its name",
    "scale": "--scale",
    "seed": "--seeds",
    "optimizer.method": "--method",
    "task.kind": "its name",
    "model.weights_cell": "--set model.options.weights=RUN",
    "system.workers": "--devices and --nodes",
}
"""Fields that cannot be set, and where they are chosen instead."""

FAMILIES: dict[type[Any], tuple[str, Callable[[str], type[Any]]]] = {
    OptimizerConfig: ("method", config_class),
    TaskConfig: ("kind", task_class),
}
"""Records that come in several classes: the field that says which, and the class of each of its values."""


def to_json(config: RunConfig) -> str:
    """A configuration as indented JSON; :func:`from_json` gives back an equal one."""
    return json.dumps(to_plain(config), indent=2) + "\n"


def from_json(text: str) -> RunConfig:
    """The configuration written by :func:`to_json`."""
    return from_plain(RunConfig, json.loads(text))


def to_plain(value: Any) -> Any:
    """Nested records as dictionaries, lists and scalars."""
    if dataclasses.is_dataclass(value):
        return {item.name: to_plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, tuple) else value


def from_plain(kind: type[Record], values: Mapping[str, Any]) -> Record:
    """The record of the given class whose fields are ``values``; unknown keys and wrong types are errors."""
    chosen: type[Any] = kind
    for family, (tag, class_of) in FAMILIES.items():
        if issubclass(kind, family):
            chosen = class_of(values.get(tag, ""))
    hints = _hints(chosen)
    for name in values:
        if name not in hints:
            raise unknown(f"field of {chosen.__name__}", name, hints)
    return cast(Record, chosen(**{name: _check(value, hints[name], name) for name, value in values.items()}))


def normalise(config: RunConfig) -> RunConfig:
    """The same configuration with every number in its declared type (1 becomes 1.0 in a float field)."""
    return settled(from_plain(RunConfig, to_plain(config)))


def override(config: RunConfig, assignments: Iterable[str]) -> RunConfig:
    """A configuration with some fields replaced, each given as ``"section.field=value"``.

    >>> from lesam.lab import recipes
    >>> config = recipes.build("digits", method="lesam", scale="smoke")
    >>> override(config, ["optimizer.sigma=0.3", "optimizer.rho_max=none"]).optimizer.sigma
    0.3
    """
    values = to_plain(config)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"an override is written section.field=value, got {assignment!r}")
        target, name, annotation = _locate(config, values, path.strip())
        target[name] = parse(text.strip(), annotation, path)
    return settled(from_plain(RunConfig, values))


def change(config: RunConfig, changes: Mapping[str, Any]) -> RunConfig:
    """A configuration with some fields replaced by values, each under its dotted path.

    >>> from lesam.lab import recipes
    >>> change(recipes.build("digits", scale="smoke"), {"optimizer.rho_max": None}).optimizer.rho_max is None
    True
    """
    values = to_plain(config)
    for path, value in changes.items():
        target, name, _ = _locate(config, values, path)
        target[name] = to_plain(value)
    return settled(from_plain(RunConfig, values))


def _locate(config: RunConfig, values: dict[str, Any], path: str) -> tuple[dict[str, Any], str, Any]:
    """The dictionary and key that a dotted path names, and the type of what is there."""
    *sections, name = path.split(".")
    record: Any = config
    for section in sections:
        if not dataclasses.is_dataclass(record) or section not in _hints(type(record)):
            raise _unknown_path(config, path)
        record, values = getattr(record, section), values[section]
    if isinstance(record, Mapping):
        return values, name, Scalar
    if name not in _hints(type(record)) or dataclasses.is_dataclass(getattr(record, name)):
        raise _unknown_path(config, path)
    if path in FIXED:
        raise ValueError(f"{path} cannot be set: it is what the recipe was asked for ({FIXED[path]})")
    return values, name, _hints(type(record))[name]


def _unknown_path(config: RunConfig, path: str) -> ValueError:
    return unknown("setting", path, paths(config))


def paths(config: Any, prefix: str = "") -> list[str]:
    """Every dotted path that :func:`override` accepts for this configuration."""
    found: list[str] = []
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value):
            found += paths(value, f"{prefix}{item.name}.")
        elif isinstance(value, Mapping):
            found += [f"{prefix}{item.name}.{key}" for key in value] or [f"{prefix}{item.name}.KEY"]
        else:
            found.append(prefix + item.name)
    return [path for path in found if path not in FIXED]


def parse(text: str, annotation: Any, path: str) -> Any:
    """A value written on a command line, in the type of its field."""
    if text.lower() in ("none", "null") and _accepts(None, annotation):
        return None
    if typing.get_origin(annotation) is tuple:
        inner = typing.get_args(annotation)[0]
        return [parse(part, inner, path) for part in text.split(",") if part]
    if text.lower() in ("true", "false") and _accepts(True, annotation):
        return text.lower() == "true"
    for convert in (int, float):
        try:
            number = convert(text)
        except ValueError:
            continue
        if _accepts(number, annotation):
            return _check(number, annotation, path)
    return _check(text, annotation, path)


def check_options(prefix: str, chosen: Mapping[str, Any], makers: Iterable[Any]) -> None:
    """Refuse options of another type than the functions or classes have them that are called with them."""
    hints: dict[str, Any] = {}
    for maker in makers:
        hints |= typing.get_type_hints(maker.func if isinstance(maker, functools.partial) else maker)
    for name, value in chosen.items():
        if name in hints and isinstance(value, str | int | float | None):  # a library's caller may give a Path
            _check(value, hints[name], f"{prefix}.{name}")


def _read_hints(kind: Any) -> dict[str, Any]:
    """The fields of a record class and their types."""
    names = {item.name for item in dataclasses.fields(kind)}
    return {name: hint for name, hint in typing.get_type_hints(kind).items() if name in names}


# Read once for each class: a plan of a thousand runs asks forty thousand times.
_hints: Callable[[Any], dict[str, Any]] = functools.cache(_read_hints)


def _accepts(value: Any, annotation: Any) -> bool:
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(_accepts(value, part) for part in typing.get_args(annotation))
    if origin is Literal:
        return value in typing.get_args(annotation)
    if annotation in (None, type(None)):
        return value is None
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(annotation, type) and type(value) is annotation


def _check(value: Any, annotation: Any, name: str) -> Any:
    """The value in the type of its annotation, or an error that names both."""
    origin = typing.get_origin(annotation)
    if dataclasses.is_dataclass(annotation):
        return from_plain(cast(type[Any], annotation), value)
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_check(item, typing.get_args(annotation)[0], name) for item in value)
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, Mapping):
        return dict(value)
    if not _accepts(value, annotation):
        if origin is Literal and isinstance(value, str):
            raise unknown(name, value, [str(choice) for choice in typing.get_args(annotation)])
        raise ValueError(f"{name} must be of type {_spell(annotation)}, got {value!r}")
    if type(value) is int and _only_float(annotation):
        return float(value)
    return value


def _only_float(annotation: Any) -> bool:
    """Whether a field holds floating-point numbers and never integers."""
    arguments = typing.get_args(annotation) or (annotation,)
    return float in arguments and int not in arguments


def _spell(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)
