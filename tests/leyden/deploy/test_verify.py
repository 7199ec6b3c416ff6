"""A written file against what the checkpoint gives."""

import pytest
import torch
from torch import nn

from leyden import Failed
from leyden.deploy import formats, verify
from leyden.deploy.graph import Metadata, OwnGraph


class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x).softmax(1)


@pytest.fixture(params=["torchscript", "state_dict"])
def written(request, tmp_path):
    """A file, and a function that checks it against expected outputs that are changed so."""
    graph, path = OwnGraph(Task()).eval(), tmp_path / "a"
    metadata = Metadata("own", {"x": ["batch", 3]}, {"probs": ["batch", 2]})
    formats.write(request.param, graph, (torch.ones(3, 3),), metadata, path)

    def check(change=lambda expected: expected, **fields):
        vars(metadata).update(fields)
        inputs = [(torch.randn(n, 3),) for n in (1, 7)]
        with torch.no_grad():
            cases = [(x, tuple(map(change, graph(*x)))) for x in inputs]
        return verify.check(request.param, path, graph, metadata, cases)

    return path, check


def test_equal_numbers_are_reported(written):
    report = written[1]()
    assert report["max_abs_diff"] < 1e-6 and report["batches"] == [[[1, 3]], [[7, 3]]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda expected: expected + 1e-3, "0.001 away"),
        (lambda expected: expected * float("nan"), "nan away"),
        (lambda expected: expected[:, :1], "the checkpoint"),
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
