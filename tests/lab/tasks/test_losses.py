import pytest
import torch
from torch.nn.functional import cross_entropy

from lab.tasks.losses import FocalLoss, WeightedCrossEntropy


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equal_classes_weigh_nothing_else(smoothing):
    logits, y = torch.randn(12, 3), torch.arange(12) % 3
    loss = WeightedCrossEntropy([7, 7, 7], smoothing)
    assert torch.allclose(loss(logits, y), cross_entropy(logits, y, label_smoothing=smoothing))


def test_all_classes_weigh_the_same_together():
    """Over the training data: the mean over classes of each class's mean loss."""
    y = torch.tensor([0] * 10 + [1] * 3 + [3] * 2)
    logits = torch.randn(len(y), 4)
    loss = WeightedCrossEntropy(y.bincount().tolist())
    means = [cross_entropy(logits[y == label], y[y == label]) for label in (0, 1, 3)]
    assert torch.allclose(loss(logits, y), torch.stack(means).mean())
    assert loss.weight[2] == 0  # no training sample
    assert torch.allclose(loss.weight[y].mean(), torch.tensor(1.0))


def test_it_is_a_mean_over_samples():
    loss = WeightedCrossEntropy([9, 1])
    logits, y = torch.randn(10, 2), torch.tensor([0] * 9 + [1])
    halves = loss(logits[:5], y[:5]), loss(logits[5:], y[5:])
    assert torch.allclose(sum(halves) / 2, loss(logits, y))


def test_the_weights_come_from_the_facts(train):
    from leyden.resume import checkpoints

    run = train("task/loss=weighted_cross_entropy", "trainer.max_epochs=1")
    weight = checkpoints.read(run / "checkpoints" / "last.ckpt")["state_dict"]["loss.weight"]
    assert weight.shape == (10,) and (weight > 0).all()


def test_focal_loss_is_cross_entropy_at_gamma_zero():
    logits, y = torch.randn(8, 5), torch.arange(8) % 5
    assert torch.allclose(FocalLoss(0)(logits, y), cross_entropy(logits, y))
    assert FocalLoss(2)(logits, y) < cross_entropy(logits, y)
