"""FSDP2: sharded over two processes, saved half-way with torch.distributed.checkpoint, loaded and continued."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import lesam

WORLD, STEPS = 2, 10


def build() -> tuple[nn.Module, lesam.SharpnessAware]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
    if dist.is_initialized():
        for layer in (model[0], model[2], model):
            fully_shard(layer)
    base = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, lesam.LESAM(base, sigma=0.05, model=model)


def train(model: nn.Module, opt: lesam.SharpnessAware, steps: range, rank: int, world: int) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(32, 8, dtype=torch.float64, generator=generator).chunk(world)[rank]
        y = torch.randint(0, 3, (32,), generator=generator).chunk(world)[rank]

        def closure(x=x, y=y):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        opt.step(closure)


def work(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    model, opt = build()
    train(model, opt, range(STEPS // 2), rank, WORLD)
    weights, state = get_state_dict(model, opt)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/checkpoint")

    model, opt = build()  # as after a crash
    weights, state = get_state_dict(model, opt)
    saved = {"model": weights, "optimizer": state}
    dcp.load(saved, checkpoint_id=f"{folder}/checkpoint")
    set_state_dict(model, opt, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    train(model, opt, range(STEPS // 2, STEPS), rank, WORLD)
    sharded = torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])
    dist.barrier()  # torch 2.6 may wait for ever where the last operation had tensors of Python
    dist.destroy_process_group()

    model, opt = build()  # unsharded, on the whole batch, never stopped
    train(model, opt, range(STEPS), 0, 1)
    alone = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.allclose(sharded, alone, rtol=1e-7)
    if rank == 0:
        print(f"sharded and resumed differs from neither by {(sharded - alone).abs().max():.1e}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(folder,), nprocs=WORLD)
