from functools import partial

import pytest
import torch
from lightning import Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lab.tasks.classification import MANY, Classification


def task(num_classes, classes=None):
    return Classification(
        num_classes=num_classes,
        classes=classes,
        model=nn.Identity(),
        preprocess=nn.Identity(),
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(torch.optim.SGD, lr=0.1),
        scheduler=None,
    )


def measured(task, logits, y, batch=7):
    trainer = Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    (found,) = trainer.test(task, DataLoader(TensorDataset(logits, y), batch), verbose=False)
    return found


@pytest.mark.parametrize("names", [None, ["cat", "собака", "a/b", "never"]])
def test_the_test_is_told_by_class(names):
    y = torch.arange(30) % 3
    logits = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    model = task(4, names)
    for _ in range(2):  # the second is not added to the first
        found = measured(model, logits, y)
    counts = torch.zeros(4, 4, dtype=torch.int64)
    for true, predicted in zip(y, logits.argmax(1), strict=True):
        counts[true, predicted] += 1
    details, names = model.details, names or ["0", "1", "2", "3"]
    assert details["confusion"] == counts.tolist() and details["classes"] == names
    shares = {name: value for name, value in details.items() if name.startswith("test/acc/")}
    assert shares == pytest.approx({f"test/acc/{names[i]}": int(counts[i, i]) / 10 for i in range(3)})
    assert found["test/acc"] == pytest.approx(sum(shares.values()) / 3) and set(found) & set(shares) == set()


def test_of_very_many_classes_there_is_no_matrix():
    model = task(MANY + 1)
    assert "test/acc" in measured(model, torch.randn(8, MANY + 1), torch.arange(8)) and model.details == {}


def test_the_matrix_is_not_in_the_checkpoint():
    assert not task(3).state_dict()
