"""What concerns the device: waiting for it, its memory, its streams, graphs and kernels, and the compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..methods import METHODS
from .counting import Bytes, DeviceBytes, Operations
from .outcome import BrokenPromiseError, Measured, NotApplicableError, each, first_line, needs
from .subjects import Batch, backward, batches, difference, make, network, plain_step, sgd, step, weights


def no_waiting(device: torch.device) -> Measured:
    """From the second step on, no method makes the host wait for the device, but for the one number a gate reads."""
    cases = each((name, partial(_never_waits, name, device)) for name in METHODS)
    how = "under sync debug mode" if device.type == "cuda" else "counted"
    return Measured(0, f"host reads beyond those of gates, in 3 steps of {cases} methods, {how}")


def _never_waits(name: str, device: torch.device) -> None:
    model = network(device)
    opt = make(name, sgd(model))
    first, *others = batches(device, 4)
    step(opt, model, first)
    allowed = 0 if opt.parts.gate is None else len(others)
    with Operations() as counted, _waiting_is_an_error() if device.type == "cuda" and not allowed else nullcontext():
        for batch in others:
            step(opt, model, batch)
    if counted.host_reads != allowed:
        raise BrokenPromiseError(f"{counted.host_reads} host reads")


@contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def memory(device: torch.device) -> Measured:
    """SAM, LE-SAM and LE-SAM+ need one copy of the weights, GSAM two."""
    if device.type not in ("cpu", "cuda", "xpu"):
        raise NotApplicableError(f"torch counts no peak of memory on {device.type}")
    side = 256 if device.type == "cpu" else 1024  # on a GPU, blocks of up to 1 MB are rounded
    extra = {name: _copies(name, device, side) for name in ("sam", "lesam", "lesamplus", "gsam")}
    wrong = [name for name, copies in extra.items() if not copies <= (2.1 if name == "gsam" else 1.1)]
    if wrong:
        raise BrokenPromiseError(", ".join(f"{name} takes {extra[name]:.2f} copies more" for name in wrong))
    return Measured(
        max(extra["sam"], extra["lesam"], extra["lesamplus"]), f"times the weights' size; GSAM {extra['gsam']:.2g}"
    )


def _copies(name: str, device: torch.device, side: int, tensors: int = 32) -> float:
    """Peak memory of a method beyond that of the same two passes under its base, in copies of the parameters."""
    ours, bare = (_peak(method, device, side, tensors) for method in (METHODS[name], None))
    return (ours - bare) / (4 * side * side * tensors)


def _peak(method: Callable[..., Any] | None, device: torch.device, side: int, tensors: int) -> int:
    """Peak memory of two steps on a loss that keeps nothing of the model's size for its backward."""
    parameters = [nn.Parameter(torch.ones(side, side, device=device)) for _ in range(tensors)]
    with Bytes() if device.type == "cpu" else DeviceBytes(device) as followed:
        base = torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
        opt: Any = base if method is None else method(base)

        def closure() -> Tensor:
            opt.zero_grad()
            loss = torch.stack([p.square().sum() for p in parameters]).sum()
            backward(loss)
            return loss

        for _ in range(2):
            if method is None:
                closure()
            opt.step(closure)
    return followed.peak


def compiled(device: torch.device) -> Measured:
    """A compiled model gives the same numbers and is not compiled again."""
    with needs("torch.compile"):
        from torch._dynamo import reset
        from torch._dynamo.utils import counters

        reset()
    backend = "aot_eager" if device.type == "cpu" else "inductor"
    worst, data = 0.0, batches(device, 4)
    try:
        for name in ("lesam", "lesamplus"):
            model, twin = network(device), network(device)
            fast: Any = torch.compile(model, backend=backend)
            with needs(f"torch.compile(backend={backend!r})"):
                plain_step(fast, data[0])
                plain_step(twin, data[0])
            graphs = counters["stats"]["unique_graphs"]
            _train(make(name, sgd(model), model=fast), fast, data)
            _train(make(name, sgd(twin), model=twin), twin, data)
            more = counters["stats"]["unique_graphs"] - graphs
            if more:
                raise BrokenPromiseError(f"{name}: {more} graphs were compiled after the first")
            worst = max(worst, _expect_near(name, model, twin))
    finally:
        reset()
    return Measured(worst, f"relative difference, no recompilation ({backend})")


def bases(device: torch.device) -> Measured:
    """Fused, multi-tensor and capturable bases step as plain ones do."""
    kinds: list[tuple[Callable[..., torch.optim.Optimizer], dict[str, bool]]] = [
        (kind, {option: True}) for kind in (torch.optim.SGD, torch.optim.AdamW) for option in ("foreach", "fused")
    ]
    if device.type == "cuda":
        kinds += [(torch.optim.AdamW, {"capturable": True}), (torch.optim.AdamW, {"fused": True, "capturable": True})]
    worst, done, left_out, data = 0.0, 0, [], batches(device, 4)
    for kind, options in kinds:
        name = f"{kind.__name__}({', '.join(options)})"
        model, twin = network(device), network(device)
        try:
            base = kind(model.parameters(), lr=0.02, **options)
            plain_step(model, data[0])
            plain_step(twin, data[0])
        except RuntimeError as error:  # torch has no such kernel for this device
            left_out.append(f"{name}: {first_line(error)}")
            continue
        _train(make("lesamplus", base), model, data)
        _train(make("lesamplus", kind(twin.parameters(), lr=0.02, foreach=False)), twin, data)
        worst, done = max(worst, _expect_near(name, model, twin)), done + 1
    if not done:
        raise NotApplicableError("; ".join(left_out))
    return Measured(worst, f"largest relative difference of {done} bases")


def streams(device: torch.device) -> Measured:
    """Steps on a side stream equal those on the default stream."""
    _only_on_cuda(device)
    model, twin, data = network(device), network(device), batches(device, 4)
    _train(make("lesamplus", sgd(twin)), twin, data)
    torch.cuda.synchronize()
    aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(aside):
        _train(make("lesamplus", sgd(model)), model, data)
    aside.synchronize()
    return Measured(_expect_near("LE-SAM+", model, twin), "largest relative difference")


def graphs(device: torch.device) -> Measured:
    """A model captured in CUDA graphs gives the same numbers."""
    _only_on_cuda(device)
    worst, data = 0.0, batches(device, 4)
    for name in ("lesam", "lesamplus", "gsam"):
        model, twin = network(device), network(device)
        with needs("torch.cuda.make_graphed_callables"):
            graphed: Any = torch.cuda.make_graphed_callables(model, (data[0][0],))
        _train(make(name, sgd(model)), graphed, data)
        _train(make(name, sgd(twin)), twin, data)
        worst = max(worst, _expect_near(name, model, twin))
    return Measured(worst, "largest relative difference")


def _only_on_cuda(device: torch.device) -> None:
    if device.type != "cuda":
        raise NotApplicableError("CUDA only")


def _train(opt: Any, model: nn.Module, data: list[Batch]) -> None:
    for batch in data:
        step(opt, model, batch)


def _expect_near(name: str, model: nn.Module, twin: nn.Module, tolerance: float = 1e-3) -> float:
    off = difference(weights(model), weights(twin))
    if not off <= tolerance:
        raise BrokenPromiseError(f"{name}: the weights differ by {off:.2g} of the largest")
    return off
