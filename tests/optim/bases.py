"""Every optimizer of torch, timm and pytorch_optimizer, found by introspection: a new release adds itself.

An optimizer is built from the names of the arguments it requires. Of the ways to hand over parameters the first one is
taken with which it can step at all: some want matrices only, some want groups that say which are matrices.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import torch
from torch import Tensor, nn

PACKAGES = tuple(
    name
    for name in ("torch.optim", "timm.optim", "pytorch_optimizer")
    if importlib.util.find_spec(name.partition(".")[0]) is not None
)


def found() -> dict[str, type[torch.optim.Optimizer]]:
    """All optimizer classes by name, each under the package that defines it."""
    classes: dict[str, type[torch.optim.Optimizer]] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        candidates = list(vars(module).values())
        if package == "timm.optim":  # its registry knows classes that the module does not export
            infos = [module.get_optimizer_info(name) for name in module.list_optimizers()]
            candidates += [info.opt_class for info in infos]
        for thing in candidates:
            if not inspect.isclass(thing) or not issubclass(thing, torch.optim.Optimizer):
                continue
            if thing is not torch.optim.Optimizer and thing.__module__.startswith(package.partition(".")[0] + "."):
                classes[f"{package}.{thing.__name__}"] = thing
    return dict(sorted(classes.items()))


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    FOUND = found()


class ConstantRadius:
    """What pytorch_optimizer's GSAM calls a scheduler of rho."""

    def step(self) -> float:
        return 0.05


def network(vectors: bool = True, seed: int = 0) -> nn.Sequential:
    """A small net with matrices, and vectors unless these are not wanted."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(6, 8, bias=vectors), nn.Tanh(), nn.Linear(8, 4, bias=vectors))


def loss_at(model: nn.Module, step: int) -> Tensor:
    """The loss of a mini-batch that is different at each step; seeds what an optimizer may draw from."""
    torch.manual_seed(step)
    random.seed(step)
    numpy.random.seed(step)
    generator = torch.Generator().manual_seed(1000 + step)
    x, y = torch.randn(16, 6, generator=generator), torch.randint(0, 4, (16,), generator=generator)
    return nn.functional.cross_entropy(model(x), y)


def all_parameters(model: nn.Module) -> list[Any]:
    return list(model.parameters())


def groups_that_name_matrices(model: nn.Module) -> list[Any]:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim != 2]
    return [{"params": matrices, "use_muon": True}, {"params": vectors, "use_muon": False}]


def arguments(cls: type, model: nn.Module, params: list[Any], inner: str) -> dict[str, Any]:
    """The arguments that ``cls`` requires, and momentum where its default is none."""

    def optimizer() -> Any:
        return torch.optim.AdamW if inner == "class" else torch.optim.AdamW(params, lr=0.01)

    known: dict[str, Callable[[], Any]] = {
        "params": lambda: params,
        "model": lambda: model,
        "optimizer": optimizer,
        "base_optimizer": optimizer,
        "rho_scheduler": ConstantRadius,
        "num_iterations": lambda: 20,
        "num_data": lambda: 16,
        "lr": lambda: 0.01,
    }
    given: dict[str, Any] = {}
    for name, parameter in list(inspect.signature(cls.__init__).parameters.items())[1:]:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        sentinel = name == "lr" and not isinstance(parameter.default, float | int | Tensor | None)
        if parameter.default is parameter.empty or sentinel:
            if name not in known:
                raise KeyError(f"{cls.__name__} requires {name}: give a value for it here")
            given[name] = known[name]()
        elif name == "momentum" and parameter.default == 0:
            given[name] = 0.9
    return given


class Recipe:
    """A way to build one optimizer: which net, how its parameters are handed over."""

    def __init__(self, cls: type, vectors: bool, hand_over: Callable[[nn.Module], list[Any]], inner: str) -> None:
        self.cls, self.vectors, self.hand_over, self.inner = cls, vectors, hand_over, inner

    def network(self, seed: int = 0) -> nn.Sequential:
        return network(self.vectors, seed)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer, in training mode where it has modes."""
        base = self.cls(**arguments(self.cls, model, self.hand_over(model), self.inner))
        if hasattr(base, "train"):
            base.train()
        return base

    def can_step(self) -> bool:
        model = self.network()
        try:
            base, loss = self.build(model), loss_at(model, 0)
            loss.backward()
            base.step(loss.detach)
        except Exception:
            return False
        return True


@functools.cache
def recipe(name: str) -> Recipe:
    """How to build the optimizer of this name."""
    cls = FOUND[name]
    ways = [
        Recipe(cls, vectors, hand_over, inner)
        for vectors, hand_over in ((True, all_parameters), (True, groups_that_name_matrices), (False, all_parameters))
        for inner in ("instance", "class")
    ]
    for way in ways:
        if way.can_step():
            return way
    for way in ways:
        try:
            way.build(way.network())
        except Exception as reason:
            last = reason
        else:
            return way
    raise RuntimeError(f"no way to build {name} was found; the last one failed with {last!r}")
