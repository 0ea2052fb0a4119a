"""Which device to measure on, and what suits it: memory format, widest floating-point type, random generators."""

from __future__ import annotations

import torch
from torch import nn

from lesam.lab.config.run import SystemConfig

NARROW = 8


def measuring_device(chosen: torch.device | str | None, *, float64: bool) -> torch.device:
    """The chosen device; for None or ``auto`` an accelerator where there is one that will do.

    Args:
        chosen: What the user asked for.
        float64: Whether the measurement adds up in float64, which Apple's devices do not have.
    """
    if chosen is not None and chosen != "auto":
        device = torch.device(chosen)
        require(device.type)
        return device
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() and not float64 else "cpu")


def require(kind: str) -> None:
    """Refuse a kind of device that this machine lacks, or that torch was built without.

    >>> require("cpu")
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(kind, True):
        raise ValueError(f"there is no {kind} device that torch {torch.__version__} can use here; choose cpu or auto")


def channels_last(system: SystemConfig, model: nn.Module, device: torch.device) -> bool:
    """The configured choice; ``auto`` takes the faster format unless torch cannot be trusted with it.

    Channels-last trains small ResNets 6 to 20 % faster on a CPU and is what accelerators prefer. With torch 2.15 on an
    AVX2 processor, the backward of a strided 1 x 1 convolution over fewer than 8 channels then writes beyond its
    memory, so models that have one stay with the ordinary format on a CPU. FSDP shards contiguous parameters only.
    """
    if system.strategy == "fsdp":
        return False
    if system.channels_last != "auto":
        return system.channels_last == "on"
    return device.type != "cpu" or not any(_dangerous(module) for module in model.modules())


def _dangerous(module: nn.Module) -> bool:
    return (
        isinstance(module, nn.Conv2d)
        and module.kernel_size == (1, 1)
        and module.stride != (1, 1)
        and module.in_channels < NARROW
    )


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the global generators that a run on a device draws from: the CPU's and the device's own.

    The same numbers follow as after ``torch.manual_seed``, which also seeds every other device, and where there is none
    writes down where it was called: half a millisecond that small networks would spend in every step.

    >>> seed_generators(3, torch.device("cpu"))
    >>> ours = torch.rand(2)
    >>> torch.equal(ours, torch.rand(2, generator=torch.manual_seed(3)))
    True
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


def widest_float(device: torch.device) -> torch.dtype:
    """The floating-point type with the most digits that a device has: Apple's have no float64."""
    return torch.float32 if device.type == "mps" else torch.float64
