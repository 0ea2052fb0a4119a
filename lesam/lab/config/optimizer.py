"""The optimizer of a run as a typed record, one class for each method, made from the method's own signature.

The fields of a method's record are the hyper-parameters that its class in :data:`lesam.METHODS` takes, with the
defaults they have there; what a recipe changes stands in :mod:`lesam.lab.recipes`. A hyper-parameter of one method is
not a field of another: ``optimizer.sigma`` of a SAM run is an error.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from typing import Any, Literal, cast

import lesam
from lesam.lab.config.suggest import unknown

UNLESS_DEFAULT: Mapping[str, bool] = {"unless_default": True}
"""Part of the identity only where the value is not the default: runs from before the field keep their fingerprints."""

PLAIN: dict[str, str] = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
"""Methods of one pass without a perturbation, and how they are written in tables and figures."""

ADAPTIVE: dict[str, float] = {"adam": 0.0, "adamw": 1e-2}
"""Plain methods that need no learning rate as large as SGD's, and torch's default weight decay of each."""

TITLES: dict[str, str] = {"lesam": "LE-SAM", "lesamplus": "LE-SAM+"}
"""Titles that do not follow from the name of the class and are no attribute ``title`` of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Fields that every method has: the base optimizer, and how the passes treat BatchNorm and workers."""

    method: str
    base: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = 0.05
    momentum: float = 0.9
    """SGD's momentum, or the first beta of Adam and AdamW."""
    nesterov: bool = False
    beta2: float = 0.999
    """The second beta of Adam and AdamW."""
    weight_decay: float = 0.0
    batch_norm: Literal["clean", "both"] = "clean"
    """Which passes move BatchNorm's running statistics."""
    perturbation: Literal["global", "local"] = "global"
    """One perturbation for the whole batch, or one for each worker."""
    max_norm: float | None = None
    """Clip the norm of the final gradient, never of the one that sets the radius."""
    micro_batches: int = field(default=1, metadata=UNLESS_DEFAULT)
    """Parts of a batch that pass through the network one by one; each has its own perturbation if that is local."""
    perturb: Literal["all", "norms"] = field(default="all", metadata=UNLESS_DEFAULT)
    """All parameters, or the scales and shifts of norm layers alone (SAM-ON)."""

    def __post_init__(self) -> None:
        """Refuse fields that contradict each other."""
        if self.batch_norm == "both" and self.perturbation == "local":
            raise ValueError(
                "optimizer.perturbation='local' needs the model, and then BatchNorm follows the clean pass only: "
                "set optimizer.batch_norm=clean as well"
            )
        if self.micro_batches < 1 or (self.micro_batches > 1 and self.method in (*PLAIN, "esam")):
            raise ValueError(
                f"optimizer.micro_batches must be at least 1, and 1 for {', '.join(PLAIN)} and esam; "
                f"got {self.micro_batches} for {self.method}"
            )
        if self.method in PLAIN and self.perturb != "all":
            raise ValueError(f"plain {self.method} perturbs nothing: leave optimizer.perturb={self.perturb} out")
        if self.method in PLAIN and self.base != self.method:
            raise ValueError(f"optimizer.base of plain {self.method} must be {self.method!r}, got {self.base!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to other processes by method and values: classes that are made cannot be found by name."""
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "method"}
        return _remade, (self.method, values)


_COMMON = frozenset(item.name for item in fields(OptimizerConfig))

# A run has a seed of its own, and its BatchNorm, workers and switch are fields of the run.
_NOT_HYPER_PARAMETERS = _COMMON | {"seed"}

# Spelled in the lab, not in the library: "rho_min" makes GSAM's radius follow the learning rate from rho down to it,
# "threshold_end" AE-SAM's threshold a line over the run.
_ADDED: dict[str, list[tuple[str, Any, Any]]] = {
    "gsam": [("rho_min", float | None, None)],
    "aesam": [("threshold_end", float | None, None)],
}


def methods() -> tuple[str, ...]:
    """Every method a run may name: the plain ones, and the keys of ``lesam.METHODS``."""
    return (*PLAIN, *lesam.METHODS)


def config_class(method: str) -> type[OptimizerConfig]:
    """The record of a method.

    >>> [item.name for item in fields(config_class("lesam"))][-3:]
    ['sigma', 'rho_max', 'varrho']
    """
    if method in PLAIN:
        return _plain_class(method)
    if method not in lesam.METHODS:
        raise unknown("method", method, methods())
    kind: Any = lesam.METHODS[method]
    return _class_of(method, kind)


def optimizer_config(method: str, **settings: Any) -> OptimizerConfig:
    """The optimizer of a run: a method, and the settings in which it differs from the library's defaults.

    >>> optimizer_config("sam", lr=0.1).rho
    0.05
    """
    return config_class(method)(**settings)


def title(method: str) -> str:
    """How a method is written in tables and figures.

    >>> title("friendlysam"), title("s2sam"), title("lesamplus"), title("gsam")
    ('Friendly-SAM', 'S2-SAM', 'LE-SAM+', 'GSAM')
    """
    if method in PLAIN:
        return PLAIN[method]
    if method not in lesam.METHODS:
        raise unknown("method", method, methods())
    kind = lesam.METHODS[method]
    own = getattr(kind, "title", None)
    if isinstance(own, str):
        return own
    return TITLES.get(method) or re.sub(r"(?<=[a-z0-9])SAM", "-SAM", kind.__name__)


def description(method: str) -> str:
    """One line about a method: the first one of its class's docstring.

    >>> description("lesam")
    'Loss-Equated SAM: fix the rise in loss, not the radius.'
    """
    kind = config_class(method) if method in PLAIN else lesam.METHODS[method]
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def own_settings(config: OptimizerConfig) -> dict[str, Any]:
    """The hyper-parameters that only this method has.

    >>> own_settings(optimizer_config("sam", rho=0.1))
    {'rho': 0.1}
    """
    return {item.name: getattr(config, item.name) for item in fields(config) if item.name not in _COMMON}


def budget_name(config: OptimizerConfig) -> str | None:
    """The scalar that says how far to climb: ``sigma`` for a loss budget, ``rho`` for a radius, None for neither."""
    names = own_settings(config)
    return "sigma" if "sigma" in names else "rho" if "rho" in names else None


def has_budget(method: str) -> bool:
    """Whether a method climbs by a loss budget, which recipes anneal at the end of training.

    >>> has_budget("lesam"), has_budget("sam"), has_budget("sgd")
    (True, False, False)
    """
    return budget_name(optimizer_config(method)) == "sigma"


def _remade(method: str, values: dict[str, Any]) -> OptimizerConfig:
    return optimizer_config(method, **values)


@cache
def _plain_class(method: str) -> type[OptimizerConfig]:
    name = PLAIN[method]
    return _made(
        method,
        f"{name}Config",
        f"Plain {name}, one pass.",
        [("base", Literal["sgd", "adam", "adamw"], method), *([("lr", float, 1e-3)] if method in ADAPTIVE else [])],
    )


@cache
def _class_of(method: str, kind: Any) -> type[OptimizerConfig]:
    hints = typing.get_type_hints(kind.__init__)
    found: list[tuple[str, Any, Any]] = []
    for parameter in list(inspect.signature(kind).parameters.values())[1:]:  # the first one is the base optimizer
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        annotation = _plain_type(hints.get(parameter.name, type(parameter.default)))
        if named and parameter.name not in _NOT_HYPER_PARAMETERS and annotation is not None:
            found.append((parameter.name, annotation, parameter.default))
    return _made(method, f"{kind.__name__}Config", f"Settings of {kind.__name__}.", [*found, *_ADDED.get(method, [])])


def _made(method: str, name: str, words: str, settings: list[tuple[str, Any, Any]]) -> type[OptimizerConfig]:
    own = [("method", Literal[method], field(default=method))]
    # A parameter without a default stays one that has to be given.
    own += [
        (item, annotation, field() if value is inspect.Parameter.empty else field(default=value))
        for item, annotation, value in settings
    ]
    namespace = {"__doc__": words, "__module__": __name__}
    made = make_dataclass(
        name, own, bases=(OptimizerConfig,), namespace=namespace, frozen=True, kw_only=True, slots=True
    )
    return cast(type[OptimizerConfig], made)


def _plain_type(annotation: Any) -> Any:
    """The part of a type that can be written on a command line, None where there is none: no schedules, no callables.

    >>> _plain_type(float | types.FunctionType | None)
    float | None
    """
    if typing.get_origin(annotation) is Literal:
        return annotation
    union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kept = [part for part in (typing.get_args(annotation) if union else (annotation,)) if part in _WRITABLE]
    if not any(part is not type(None) for part in kept):
        return None
    whole = kept[0]
    for part in kept[1:]:
        whole = whole | part
    return whole


_WRITABLE = (bool, int, float, str, type(None))
