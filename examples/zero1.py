"""ZeRO-1: two processes take the steps of one, and each keeps AdamW's states of a part of the parameters only.

``ZeroRedundancyOptimizer`` is the base. Every process perturbs all weights, steps its part and sends it to the others.

Run: python examples/zero1.py
"""

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import lesam

WORLD, STEPS = 2, 10


def train(rank: int, world: int) -> tuple[torch.Tensor, lesam.LESAM]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    run = DistributedDataParallel(model) if world > 1 else model
    options = {"lr": 0.02, "weight_decay": 1e-2}
    base = (
        ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **options)
        if world > 1
        else torch.optim.AdamW(model.parameters(), **options)
    )
    opt = lesam.LESAM(base, sigma=0.05, model=run)
    for _ in range(STEPS):
        x, y = torch.randn(32, 8, dtype=torch.float64), torch.randint(0, 3, (32,))
        x, y = x.chunk(world)[rank], y.chunk(world)[rank]

        def closure(x=x, y=y):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(run(x), y)
            loss.backward()
            return loss

        opt.step(closure)
    return torch.cat([p.detach().flatten() for p in model.parameters()]), opt


def work(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=WORLD)
    (shared, opt), (alone, _) = train(rank, WORLD), train(0, 1)
    assert torch.allclose(shared, alone, rtol=1e-9)
    kept = sum(state["exp_avg"].numel() for state in opt.base.optim.state.values())
    assert 0 < kept < len(alone)
    opt.base.consolidate_state_dict(to=0)  # before saving: the first process gets the states of all
    if rank == 0:
        states = opt.state_dict()["state"]
        assert sum(state["exp_avg"].numel() for state in states.values()) == len(alone)
        apart = (shared - alone).abs().max()
        print(f"two processes differ from one by {apart:.1e}; this one keeps {kept} of {len(alone)} moments")
    dist.barrier()  # torch 2.6 may wait for ever where the last operation had tensors of Python
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(f"file://{folder}/store",), nprocs=WORLD)
