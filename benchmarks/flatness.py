"""Curvature side by side: one Hessian product, the top 20 eigenvalues, and memory, against peers in one run.

    python benchmarks/flatness.py [--data FOLDER] [--samples 64] [--batch 32] [--width 8] [--out FILE]

A small ResNet is trained briefly on CIFAR-100 (`FOLDER/cifar-100-binary/train.bin`, FOLDER from `--data` or the
environment variable LESAM_DATA), or on random images with fixed labels when there is none. Only ratios are meant to
be compared: everything in a table is timed in turns on the same machine. Errors are against float64.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp
from torch.nn import functional

from lesam.flatness import HessianOperator, top_eigenvalues

TARGET_TIME, TARGET_PRODUCT, TOLERANCE, K = 1 / 5, 1.2, 1e-3, 20
Batches = list[tuple[Tensor, Tensor]]


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if inside != outside or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x))))) + self.shortcut(x))


def small_resnet(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        Block(width, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 100),
    )


def images(folder: str | None, count: int) -> tuple[Tensor, Tensor, str]:
    path = Path(folder or "") / "cifar-100-binary" / "train.bin"
    if folder and path.exists():
        records = np.fromfile(path, dtype=np.uint8, count=3074 * count).reshape(count, 3074)
        x = torch.from_numpy(records[:, 2:].reshape(count, 3, 32, 32).copy()).float() / 255
        return (x - 0.48) / 0.26, torch.from_numpy(records[:, 1].astype(np.int64)), "CIFAR-100"
    generator = torch.Generator().manual_seed(0)
    x = functional.interpolate(torch.randn(count, 3, 8, 8, generator=generator), scale_factor=4, mode="bilinear")
    return x, torch.randint(0, 100, (count,), generator=generator), "random images"


def trained(width: int, x: Tensor, y: Tensor, steps: int) -> nn.Module:
    torch.manual_seed(0)
    model = small_resnet(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        pick = torch.randint(0, len(x), (64,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        functional.cross_entropy(model(x[pick]), y[pick]).backward()
        optimizer.step()
        schedule.step()
    return model.eval()


def in_turns(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Fastest of several runs of each way, taken in turns so that a slow moment hits them all."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def products(model: nn.Module, data: Batches, rounds: int) -> dict[str, Any]:
    """Time and error of one Hessian product done in all known ways."""
    from curvlinops import HessianLinearOperator

    params = list(model.parameters())
    names = [name for name, _ in model.named_parameters()]
    samples = sum(len(x) for x, _ in data)
    v = torch.randn(sum(p.numel() for p in params), generator=torch.Generator().manual_seed(1))
    vs = [part.view_as(p) for part, p in zip(v.split([p.numel() for p in params]), params, strict=True)]

    def flat(tensors: Any) -> Tensor:
        return torch.cat([t.detach().reshape(-1) for t in tensors])

    def mean(product: Callable[[Tensor, Tensor], Any]) -> Callable[[], Tensor]:
        return lambda: sum(flat(product(x, y)) * (len(x) / samples) for x, y in data)

    def gradient(x: Tensor, y: Tensor) -> Any:
        return torch.autograd.grad(functional.cross_entropy(model(x), y), params)

    def double_backward(x: Tensor, y: Tensor) -> Any:
        g = torch.autograd.grad(functional.cross_entropy(model(x), y), params, create_graph=True)
        return torch.autograd.grad(g, params, vs)

    def func_jvp(x: Tensor, y: Tensor) -> Any:
        def loss(ps: tuple[Tensor, ...]) -> Tensor:
            return functional.cross_entropy(functional_call(model, dict(zip(names, ps, strict=True)), (x,)), y)

        return jvp(grad(loss), (tuple(p.detach() for p in params),), (tuple(vs),))[1]

    peer = HessianLinearOperator(model, nn.CrossEntropyLoss(), params, data, check_deterministic=False)
    ours = HessianOperator(model, functional.cross_entropy, data)
    differences = HessianOperator(model, functional.cross_entropy, data, product="finite_difference")
    ways: dict[str, Callable[[], Tensor]] = {
        "gradient (for scale)": mean(gradient),
        "lesam": lambda: ours @ v,
        "lesam, finite differences": lambda: differences @ v,
        "double backward": mean(double_backward),
        "torch.func jvp of grad": mean(func_jvp),
        "curvlinops": lambda: peer @ v,
    }
    if len(data) == 1:
        x, y = data[0]
        g = torch.autograd.grad(functional.cross_entropy(model(x), y), params, create_graph=True)
        ways["double backward, graph kept"] = lambda: flat(torch.autograd.grad(g, params, vs, retain_graph=True))
    seconds = in_turns(ways, rounds)
    exact = HessianOperator(double(model), functional.cross_entropy, in_double(data)) @ v.double()
    errors = {name: float((way().double() - exact).norm() / exact.norm()) for name, way in ways.items()}
    errors.pop("gradient (for scale)")
    correct = {name: seconds[name] for name, error in errors.items() if error < 1e-4}
    cheapest = min((t for name, t in correct.items() if name != "lesam"), default=float("nan"))
    print(f"\none Hessian product, {len(data)} batch(es) of {len(data[0][0])}")
    print(f"  {'way':<30}{'seconds':>9}{'gradients':>11}{'error':>10}")
    for name, t in sorted(seconds.items(), key=lambda item: item[1]):
        error = f"{errors[name]:.1e}" if name in errors else ""
        print(f"  {name:<30}{t:>9.3f}{t / seconds['gradient (for scale)']:>11.2f}{error:>10}")
    ratio = seconds["lesam"] / cheapest
    print(f"  lesam / cheapest correct other way: {ratio:.2f} (target at most {TARGET_PRODUCT})")
    return {"seconds": seconds, "errors": errors, "ratio_to_cheapest": ratio, "batches": len(data)}


def double(model: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(model).double()


def in_double(data: Batches) -> Batches:
    return [(x.double(), y) for x, y in data]


def spectra(model: nn.Module, data: Batches) -> dict[str, Any]:
    """Top eigenvalues by this library and by PyHessian with its defaults; errors and residuals in float64.

    These runs take minutes one after the other, so they are compared in seconds of processor time, which other work
    on the machine changes least.
    """
    from pyhessian import hessian

    exact_operator = HessianOperator(double(model), functional.cross_entropy, in_double(data))
    timed = {}
    for name, keep in (("lesam", None), ("lesam, graphs kept", len(data))):
        start = time.process_time()
        operator = HessianOperator(model, functional.cross_entropy, data, keep_graphs=keep)
        ours = top_eigenvalues(operator, K, tolerance=TOLERANCE, eigenvectors=True)
        timed[name] = (time.process_time() - start, ours)
    torch.manual_seed(0)
    start = time.process_time()
    peer = hessian(model, functional.cross_entropy, dataloader=data, cuda=False)
    counted = 0
    original = peer.dataloader_hv_product

    def counting(v: Any) -> Any:
        nonlocal counted
        counted += 1
        return original(v)

    peer.dataloader_hv_product = counting
    values, vectors = peer.eigenvalues(top_n=K)
    peer_seconds = time.process_time() - start
    model.zero_grad(set_to_none=True)
    exact = top_eigenvalues(exact_operator, K, tolerance=1e-5, confirm=False)
    flat = torch.stack([torch.cat([part.reshape(-1) for part in v]) for v in vectors]).double()
    flat = flat / flat.norm(dim=1, keepdim=True)
    # Two lists that skip different eigenvalues are compared in order, as a reader of the list would.
    peer_values = torch.tensor(values, dtype=torch.float64).sort(descending=True).values
    rayleigh, peer_residuals = residuals(exact_operator, flat)
    relative = {"PyHessian": (peer_residuals / rayleigh.abs(), (peer_values / exact.values - 1).abs())}
    table = {"PyHessian": (peer_seconds, counted, peer_values)}
    for name, (seconds, found) in timed.items():
        _, left = residuals(exact_operator, found.vectors.double())
        relative[name] = (left / found.values.abs(), (found.values / exact.values - 1).abs())
        table[name] = (seconds, found.products, found.values)
    print(f"\ntop {K} eigenvalues ({exact.values[0]:.4g} to {exact.values[-1]:.4g}), relative to float64")
    print(f"  {'':<20}{'cpu s':>9}{'ratio':>8}{'products':>10}{'residual':>20}{'error of the value':>20}")
    for name, (t, count, _) in table.items():
        parts = [f"{float(r.median()):.1e} / {float(r.max()):.1e}" for r in relative[name]]
        print(f"  {name:<20}{t:>9.1f}{t / peer_seconds:>8.3f}{count:>10}{parts[0]:>20}{parts[1]:>20}")
    print(f"  residuals and errors: median / worst; target for the ratio: at most {TARGET_TIME}")
    return {
        "k": K,
        "exact": exact.values.tolist(),
        "settings": dict(exact.settings),
        "complete": {name: found.complete for name, (_, found) in timed.items()},
        "converged": {name: int(found.converged.sum()) for name, (_, found) in timed.items()},
        "measured": {
            name: {
                "cpu_seconds": t,
                "ratio_to_pyhessian": t / peer_seconds,
                "products": count,
                "values": values.tolist(),
                "relative_residual_worst": float(relative[name][0].max()),
                "relative_error_worst": float(relative[name][1].max()),
            }
            for name, (t, count, values) in table.items()
        },
    }


def residuals(operator: HessianOperator, rows: Tensor) -> tuple[Tensor, Tensor]:
    image = operator.matmat(rows.T).T
    values = (rows * image).sum(dim=1)
    return values, (image - values[:, None] * rows).norm(dim=1)


MEMORY = """
import resource, sys, torch
sys.path.insert(0, sys.argv[1])
from flatness import small_resnet
from lesam.flatness import HessianOperator
model = small_resnet(8).eval()
x, y = torch.randn(64, 3, 32, 32), torch.randint(0, 100, (64,))
for count in (2, 4, 8, 16):
    operator = HessianOperator(model, torch.nn.functional.cross_entropy, [(x, y)] * count)
    operator @ torch.ones(operator.size)
    print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def memory() -> dict[str, float]:
    here = Path(__file__).resolve().parent
    environment = os.environ | {"PYTHONPATH": str(here.parent)}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEMORY, str(here)], env=environment, capture_output=True, text=True
    )
    peaks = {line.split()[0]: float(line.split()[1]) for line in run.stdout.splitlines()}
    print("\npeak memory of a product: " + ", ".join(f"{n} batches {mb:.0f} MB" for n, mb in peaks.items()))
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default=os.environ.get("LESAM_DATA"))
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "flatness.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore", FutureWarning)
    x, y, source = images(options.data, 2000)
    model = trained(options.width, x, y, options.steps)
    data = list(zip(x[: options.samples].split(options.batch), y[: options.samples].split(options.batch), strict=True))
    size = sum(p.numel() for p in model.parameters())
    print(f"ResNet of width {options.width}, {size} parameters, {source}, {torch.get_num_threads()} thread(s)")
    found = {
        "platform": platform.platform(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "data": source,
        "parameters": size,
        "options": {name: str(value) for name, value in vars(options).items() if name not in ("out", "data")},
        "product_one_batch": products(model, data[:1], options.rounds),
        "product_batches": products(model, data, options.rounds),
        "eigenvalues": spectra(model, data),
        "memory_mb": memory(),
        "targets": {"product": TARGET_PRODUCT, "eigenvalues": TARGET_TIME, "error": TOLERANCE},
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\nwritten to {options.out}")


if __name__ == "__main__":
    main()
