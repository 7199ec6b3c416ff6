"""A written file against what the checkpoint gives; recurrent networks as scans, against the originals."""

import errno

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_structure

from lab.models.rnn import RNN
from leyden import Failed, UserError
from leyden.deploy import formats
from leyden.deploy.formats import scanned, with_scans
from leyden.deploy.graph import Metadata, OwnGraph


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "bias"), [(nn.GRU, False), (nn.LSTM, True)])
def test_a_scan_has_equal_numbers(cell, bias):
    torch.manual_seed(0)
    original, x = cell(3, 5, bias=bias, batch_first=True), torch.randn(4, 7, 3)
    (out, last), (its, ended) = original(x), scanned(original, x)
    assert torch.allclose(out, its, atol=1e-6)
    for mine, other in zip([last] if cell is nn.GRU else last, [ended] if cell is nn.GRU else ended, strict=True):
        assert torch.allclose(mine, other, atol=1e-6)


@pytest.mark.slow
def test_a_model_of_both_directions():
    model, x = RNN([None, 3], 4, hidden=5), (torch.randn(3, 6, 3), torch.tensor([6, 1, 4]))
    expected = model(x)
    assert torch.allclose(expected, with_scans(model)(x), atol=1e-6)
    assert "forward" in vars(model.forth[0]) and "forward" in vars(model.back[0])


@pytest.mark.parametrize("option", [{"num_layers": 2}, {"bidirectional": True}, {"batch_first": False}])
def test_what_has_no_scan_is_refused(option):
    with pytest.raises(UserError, match="one layer, one direction and batch_first"):
        with_scans(nn.Sequential(nn.LSTM(3, 5, **({"batch_first": True} | option))))


class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x).softmax(1)


@pytest.fixture(params=["torchscript", "state_dict"])
def written(request, tmp_path):
    """A file, and a function that checks it against expected outputs that are changed so."""
    graph, path = OwnGraph(Task(), tree_structure((0,))).eval(), tmp_path / "a"
    metadata = Metadata("own", {"x": ["batch", 3]}, {"probs": ["batch", 2]})
    formats.write(request.param, graph, (torch.ones(3, 3),), vars(metadata), path)

    def check(change=lambda expected: expected, **fields):
        vars(metadata).update(fields)
        inputs = [(torch.randn(n, 3),) for n in (1, 7)]
        with torch.no_grad():
            cases = [(x, tuple(map(change, graph(*x)))) for x in inputs]
        return formats.check(request.param, path, graph, metadata, cases)

    return path, check


def test_equal_numbers_are_reported(written):
    report = written[1]()
    assert report["max_abs_diff"] < 1e-6 and report["batches"] == [[[1, 3]], [[7, 3]]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda expected: expected + 1e-3, "0.001 away"),
        (lambda expected: expected * float("nan"), "nan away"),
        (lambda expected: expected[:, :1], "in place of"),
    ],
)
def test_others_fail(written, change, said):
    with pytest.raises(Failed, match=said):
        written[1](change)


def test_differences_are_in_standard_deviations_of_the_target(written):
    report = written[1](lambda expected: expected + 1e-3, target_std=[100.0, 100.0])
    assert report["max_abs_diff"] == pytest.approx(1e-5, rel=0.01)


def test_a_damaged_file_does_not_run(written):
    path, check = written
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(Failed, match="does not run"):
        check()


def test_a_full_disk_is_not_the_models_fault(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    graph = OwnGraph(Task(), tree_structure((0,)))
    with pytest.raises(OSError, match="No space left"):
        formats.write("state_dict", graph, (torch.ones(3, 3),), {}, tmp_path / "a")
