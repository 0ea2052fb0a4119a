"""The optimizer of a run as a typed record, one class per method.

The defaults are those of :mod:`lesam` itself; what a recipe changes stands in :mod:`lesam.lab.recipes`.
A hyper-parameter of one method is not a field of another: ``optimizer.sigma`` of a SAM run is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal


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

    def __post_init__(self) -> None:
        """Refuse fields that contradict each other."""
        if self.batch_norm == "both" and self.perturbation == "local":
            raise ValueError(
                "optimizer.perturbation='local' needs the model, and then BatchNorm follows the clean pass only: "
                "set optimizer.batch_norm=clean as well"
            )
        if self.method in PLAIN and self.base != self.method:
            raise ValueError(f"optimizer.base of plain {self.method} must be {self.method!r}, got {self.base!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SGDConfig(OptimizerConfig):
    """Plain SGD, one pass."""

    method: Literal["sgd"] = "sgd"
    base: Literal["sgd", "adam", "adamw"] = "sgd"


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamConfig(OptimizerConfig):
    """Plain Adam, one pass; weight decay is added to the gradient."""

    method: Literal["adam"] = "adam"
    base: Literal["sgd", "adam", "adamw"] = "adam"
    lr: float = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class AdamWConfig(OptimizerConfig):
    """Plain AdamW, one pass."""

    method: Literal["adamw"] = "adamw"
    base: Literal["sgd", "adam", "adamw"] = "adamw"
    lr: float = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class SAMConfig(OptimizerConfig):
    """Settings of :class:`lesam.SAM`."""

    method: Literal["sam"] = "sam"
    rho: float = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class ASAMConfig(OptimizerConfig):
    """Settings of :class:`lesam.ASAM`."""

    method: Literal["asam"] = "asam"
    rho: float = 0.5
    eta: float = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class FisherSAMConfig(OptimizerConfig):
    """Settings of :class:`lesam.FisherSAM`."""

    method: Literal["fishersam"] = "fishersam"
    rho: float = 0.1
    eta: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class EigenSAMConfig(OptimizerConfig):
    """Settings of :class:`lesam.EigenSAM`."""

    method: Literal["eigensam"] = "eigensam"
    rho: float = 0.1
    alpha: float = 0.2
    every: int = 100
    iterations: int = 5
    form: Literal["official", "top"] = "official"


@dataclass(frozen=True, kw_only=True, slots=True)
class FriendlySAMConfig(OptimizerConfig):
    """Settings of :class:`lesam.FriendlySAM`."""

    method: Literal["friendlysam"] = "friendlysam"
    rho: float = 0.2
    weight: float = 1.0
    decay: float = 0.9


@dataclass(frozen=True, kw_only=True, slots=True)
class GSAMConfig(OptimizerConfig):
    """Settings of :class:`lesam.GSAM`."""

    method: Literal["gsam"] = "gsam"
    rho: float = 0.05
    rho_min: float | None = None
    """When given, the radius follows the learning rate from ``rho`` down to ``rho_min``."""
    alpha: float = 0.4


@dataclass(frozen=True, kw_only=True, slots=True)
class SSAMConfig(OptimizerConfig):
    """Settings of :class:`lesam.SSAM`."""

    method: Literal["ssam"] = "ssam"
    rho: float = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class ESAMConfig(OptimizerConfig):
    """Settings of :class:`lesam.ESAM`."""

    method: Literal["esam"] = "esam"
    rho: float = 0.05
    beta: float = 0.6
    gamma: float = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class MSAMConfig(OptimizerConfig):
    """Settings of :class:`lesam.MSAM`."""

    method: Literal["msam"] = "msam"
    rho: float = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class S2SAMConfig(OptimizerConfig):
    """Settings of :class:`lesam.S2SAM`."""

    method: Literal["s2sam"] = "s2sam"
    rho: float = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class LESAMConfig(OptimizerConfig):
    """Settings of :class:`lesam.LESAM`; ``rho_max`` None means no cap."""

    method: Literal["lesam"] = "lesam"
    sigma: float = 0.35
    rho_max: float | None = 0.4
    varrho: float = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class LESAMPlusConfig(OptimizerConfig):
    """Settings of :class:`lesam.LESAMPlus`; ``rho_max`` None means no cap."""

    method: Literal["lesamplus"] = "lesamplus"
    sigma: float = 0.15
    alpha: float = 0.5
    rho_max: float | None = 0.4
    varrho: float = 1e-12
    form: Literal["paper", "reference"] = "paper"


PLAIN: tuple[str, ...] = ("sgd", "adam", "adamw")

ADAPTIVE: dict[str, float] = {"adam": 0.0, "adamw": 1e-2}
"""Plain methods that need no learning rate as large as SGD's, and torch's default weight decay of each."""

CONFIGS: dict[str, type[OptimizerConfig]] = {
    "sgd": SGDConfig,
    "adam": AdamConfig,
    "adamw": AdamWConfig,
    "sam": SAMConfig,
    "asam": ASAMConfig,
    "fishersam": FisherSAMConfig,
    "eigensam": EigenSAMConfig,
    "friendlysam": FriendlySAMConfig,
    "gsam": GSAMConfig,
    "ssam": SSAMConfig,
    "esam": ESAMConfig,
    "msam": MSAMConfig,
    "s2sam": S2SAMConfig,
    "lesam": LESAMConfig,
    "lesamplus": LESAMPlusConfig,
}
"""Every method a run may name. Those beyond :data:`PLAIN` are the keys of ``lesam.METHODS``."""


TITLES: dict[str, str] = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "sam": "SAM",
    "asam": "ASAM",
    "fishersam": "Fisher-SAM",
    "eigensam": "Eigen-SAM",
    "friendlysam": "Friendly-SAM",
    "gsam": "GSAM",
    "ssam": "SSAM",
    "esam": "ESAM",
    "msam": "MSAM",
    "s2sam": "S2-SAM",
    "lesam": "LE-SAM",
    "lesamplus": "LE-SAM+",
}
"""How the methods are written in tables and figures."""


def own_settings(config: OptimizerConfig) -> dict[str, Any]:
    """The hyper-parameters that only this method has.

    >>> own_settings(SAMConfig(rho=0.1))
    {'rho': 0.1}
    """
    common = {item.name for item in fields(OptimizerConfig)}
    return {item.name: getattr(config, item.name) for item in fields(config) if item.name not in common}


def budget_name(config: OptimizerConfig) -> str | None:
    """The scalar that says how far to climb: ``sigma`` for a loss budget, ``rho`` for a radius, None for neither."""
    names = own_settings(config)
    return "sigma" if "sigma" in names else "rho" if "rho" in names else None
