"""Two processes of DistributedDataParallel take the steps of one process with the whole batch.

python examples/ddp.py, which starts the processes itself, or torchrun --nproc-per-node=2 examples/ddp.py
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lesam

WORLD, STEPS = 2, 10


def train(rank: int, world: int, perturbation: str = "global") -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    run = DistributedDataParallel(model) if world > 1 else model
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = lesam.LESAM(base, sigma=0.05, model=run, perturbation=perturbation)
    for _ in range(STEPS):
        x, y = torch.randn(32, 8, dtype=torch.float64), torch.randint(0, 3, (32,))
        x, y = x.chunk(world)[rank], y.chunk(world)[rank]

        def closure(x=x, y=y):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(run(x), y)
            loss.backward()
            return loss

        opt.step(closure)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def work(rank: int, method: str) -> None:
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=WORLD)
    shared, local, alone = train(rank, WORLD), train(rank, WORLD, "local"), train(0, 1)
    dist.barrier()  # torch 2.6 may wait for ever where the last operation had tensors of Python
    dist.destroy_process_group()
    assert torch.allclose(shared, alone, rtol=1e-9)
    assert not torch.allclose(local, alone, rtol=1e-3)  # each worker climbed on its own half: m-sharpness
    if rank == 0:
        print(f"two processes differ from one by {(shared - alone).abs().max():.1e}")


if __name__ == "__main__":
    if "RANK" in os.environ:
        work(int(os.environ["RANK"]), "env://")
    else:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(work, args=(f"file://{folder}/store",), nprocs=WORLD)
