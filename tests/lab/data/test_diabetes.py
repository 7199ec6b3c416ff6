import pytest
import torch
from sklearn.linear_model import LinearRegression

from lab.data.diabetes import Diabetes


def test_it_is_the_bundled_table_in_its_units():
    data = Diabetes()
    sizes = {split: len(samples) for split, samples in data.splits.items()}
    assert sizes == {"train": 310, "val": 66, "test": 66}
    x = torch.cat([samples.x for samples in data.splits.values()])
    y = torch.cat([samples.y for samples in data.splits.values()])
    assert x.shape == (442, 10) and x.dtype == y.dtype == torch.float32
    assert (x[:, 0].min(), x[:, 0].max()) == (19, 79)  # years
    assert (y.min(), y.max()) == (25, 346)


def test_the_bundled_file_is_the_one_that_scikit_learn_reads():
    from sklearn.datasets import load_diabetes

    for mine, theirs in zip(Diabetes().read("train"), load_diabetes(return_X_y=True, scaled=False), strict=True):
        assert torch.equal(mine, torch.tensor(theirs, dtype=torch.float32))


def test_facts():
    facts = Diabetes().facts
    assert facts["kind"] == "table" and facts["shape"] == [10] and facts["outputs"] == 1
    assert 140 < facts["target_mean"][0] < 160 and 70 < facts["target_std"][0] < 85
    assert "classes" not in facts and "counts" not in facts


def test_least_squares_is_the_baseline_of_the_experiment():
    """The mean over ten splits that conf/experiment/diabetes_mlp.yaml is compared with."""
    scores = []
    for seed in range(10):
        splits = Diabetes(split_seed=seed).splits
        model = LinearRegression().fit(splits["train"].x, splits["train"].y)
        scores.append(model.score(splits["test"].x, splits["test"].y))
    assert sum(scores) / 10 == pytest.approx(0.503, abs=1e-3)
