import pytest
import torch
from lightning import LightningModule
from torch import nn

from leyden import replay


class Task(LightningModule):
    def __init__(self):
        super().__init__()
        self.model = nn.Sequential(nn.Linear(3, 4), nn.ReLU())

    def training_step(self, batch, batch_idx):
        self.log("a", 1.0)
        return self.model(batch["x"]).sum()


def test_each_call_is_seen_in_order_and_nothing_stays():
    task = Task()
    with replay.watched(task, keep=True) as calls:
        task.training_step({"x": torch.zeros(2, 3)}, 0)
    seen = [(call.name, call.kind, call.given, call.returned, call.leaf) for call in calls]
    assert seen == [
        ("model", "Sequential", "2 x 3", "2 x 4", False),
        ("model.0", "Linear", "2 x 3", "2 x 4", True),
        ("model.1", "ReLU", "2 x 4", "2 x 4", True),
    ]
    assert calls[1].outputs[0].shape == (2, 4) and "log" not in vars(task)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in task.modules())


def test_a_failed_step_is_found_in_the_traceback():
    task = Task()
    try:
        task.training_step({"x": torch.zeros(2, 5)}, 7)
    except Exception as error:
        trace = error.__traceback__
    name, again = replay.step_of(task, trace)
    assert name == "training_step" and replay.step_of(Task(), trace) is None
    with replay.watched(task) as calls, pytest.raises(RuntimeError):
        again()
    assert [call.returned for call in calls] == [None, None]


def test_sizes_of_nested_containers():
    assert replay.sizes([{"x": torch.zeros(2, 3)}, (torch.zeros(4), 5)]) == "2 x 3, 4"
    assert replay.sizes(3) == "-" and replay.sizes(torch.tensor(1)) == "1"
