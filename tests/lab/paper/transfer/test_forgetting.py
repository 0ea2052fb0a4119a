"""What is forgotten is what the fine-tuned body with the old head gets wrong on the old test images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lesam.lab import models
from lesam.lab.data.loading import load_data, plain_batches
from lesam.lab.paper.transfer.forgetting import forgetting
from tests.lab.running import last_checkpoint, smoke, trained


def accuracy(state: dict[str, torch.Tensor], config) -> float:
    splits = load_data(config)
    model = models.build(config.model.name, splits.classes, **config.model.options)
    model.load_state_dict(state)
    model.eval()
    (batch,) = plain_batches(config, splits.test, batch_size=1000).epoch(0)
    with torch.no_grad():
        return float((model(batch[0]).argmax(1) == batch[1]).double().mean())


def test_the_old_head_on_the_new_body(tmp_path: Path):
    old = trained(smoke("cifar100-pretraining", "schedule.epochs=6"), tmp_path)
    new = trained(smoke("cifar100-finetuning", f"model.options.weights={old.path}", "optimizer.lr=0.3"), tmp_path)
    before, tuned = (last_checkpoint(run).weights() for run in (old, new))
    assert before["fc.weight"].shape != tuned["fc.weight"].shape
    mixed = {name: value if name.startswith("fc.") else tuned[name] for name, value in before.items()}
    found = forgetting(new, old)
    assert found.before == accuracy(before, old.config()) == old.summary()["last"]["test_accuracy"]
    assert found.after == accuracy(mixed, old.config())
    assert found.forgotten == found.before - found.after != 0.0
    moved = {name: value for name, value in before.items() if "running" not in name and "num_batches" not in name}
    names = [name for name in moved if not name.startswith("fc.")]
    distance = sum((tuned[name] - before[name]).square().sum() for name in names).sqrt()
    assert found.moved == pytest.approx(float(distance / sum(before[n].square().sum() for n in names).sqrt()), rel=1e-5)


def test_another_network_is_refused(tmp_path: Path):
    old = trained(smoke("cifar100-pretraining"), tmp_path)
    other = trained(smoke("cifar100-finetuning", "model.options.width=8"), tmp_path)
    with pytest.raises(ValueError, match="another network"):
        forgetting(other, old)


def test_weights_that_were_exported(tmp_path: Path):
    """A file says less than a run folder, and gives the same start."""
    old = trained(smoke("cifar100-pretraining"), tmp_path)
    file = tmp_path / "exported.safetensors"
    save_file(load_file(last_checkpoint(old).path / "weights.safetensors"), file)
    of_run, of_file = (smoke("cifar100-finetuning", f"model.options.weights={path}") for path in (old.path, file))
    assert of_run.fingerprint == of_file.fingerprint
