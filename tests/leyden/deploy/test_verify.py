"""A written file against what the checkpoint gives."""

import pytest
import torch
from torch import nn

from leyden import Failed
from leyden.deploy import formats, verify
from leyden.deploy.graph import Call
from leyden.deploy.metadata import Metadata


class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x).softmax(1)


@pytest.fixture
def written(tmp_path):
    """A TorchScript file, its metadata and batches with what it should give."""
    graph, path = Call(Task()).eval(), tmp_path / "a.pt"
    metadata = Metadata("own", {"x": ["batch", 3]}, {"probs": ["batch", 2]})
    formats.write("torchscript", graph, (torch.ones(3, 3),), metadata, path)
    with torch.no_grad():
        cases = [verify.Case((torch.randn(n, 3),), ()) for n in (1, 7)]
        return path, metadata, [case._replace(expected=graph(*case.inputs)) for case in cases]


def test_equal_numbers_are_reported(written):
    path, metadata, cases = written
    report = verify.check("torchscript", path, metadata, cases)
    assert report["max_abs_diff"] < 1e-6 and report["class_agreement"] == 1
    assert report["batches"] == [[[1, 3]], [[7, 3]]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda expected: expected + 1e-3, "0.001 away"),
        (lambda expected: expected * float("nan"), "nan away"),
        (lambda expected: expected[:, :1], "the checkpoint"),
    ],
)
def test_others_fail(written, change, said):
    path, metadata, cases = written
    cases[1] = cases[1]._replace(expected=tuple(map(change, cases[1].expected)))
    with pytest.raises(Failed, match=said):
        verify.check("torchscript", path, metadata, cases)


def test_differences_are_in_standard_deviations_of_the_target(written):
    path, metadata, cases = written
    metadata.target_std = [100.0, 100.0]
    cases[1] = cases[1]._replace(expected=tuple(part + 1e-3 for part in cases[1].expected))
    assert verify.check("torchscript", path, metadata, cases)["max_abs_diff"] == pytest.approx(1e-5, rel=0.01)


def test_a_damaged_file_does_not_run(written):
    path, metadata, cases = written
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(Failed, match="does not run"):
        verify.check("torchscript", path, metadata, cases)
