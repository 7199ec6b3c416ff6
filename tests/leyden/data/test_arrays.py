import numpy as np
import pandas as pd
import pytest
import torch

from leyden import UserError
from leyden.data import arrays
from leyden.data.arrays import Arrays
from leyden.run.run import Run


@pytest.fixture
def save(tmp_path):
    """Write arrays into a folder, or into one .npz file, and open them."""

    def make(form="npy", **given):
        keywords = {name: given.pop(name) for name in ("layout", "val_fraction") if name in given}
        folder = tmp_path / "given"
        folder.mkdir(exist_ok=True)
        for name, values in given.items():
            np.save(folder / f"{name}.npy", values)
        if form == "npz":
            np.savez(folder / "all.npz", **given)
        return Arrays(folder / "all.npz" if form == "npz" else folder, data_dir=tmp_path / "data", **keywords)

    return make


def images(*shape, dtype=np.uint8):
    return (np.random.default_rng(0).random(shape) * 255).astype(dtype)


def everything(data):
    """x and y of all splits in the order of the file."""
    parts = [data.splits[split] for split in ("train", "val", "test")]
    order = torch.cat([part.x.rows for part in parts]).argsort()
    return torch.cat([part.x[torch.arange(len(part))].read(part.x.rows) for part in parts])[order]


@pytest.mark.parametrize("form", ["npy", "npz"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64, ">f4"])
@pytest.mark.parametrize(
    ("shape", "layout", "axes"),
    [((8, 6), "NHW", None), ((8, 6, 3), "NHWC", (2, 0, 1)), ((3, 8, 6), "NCHW", None), ((2, 2, 3), "NHWC", (2, 0, 1))],
)
def test_pictures_come_as_channels_first(save, form, dtype, shape, layout, axes):
    x = images(40, *shape, dtype=dtype)
    data = save(form, x=x, y=np.arange(40) % 4, layout="NHWC" if shape == (2, 2, 3) else "auto")
    expected = x[:, None] if layout == "NHW" else x.transpose(0, *(axis + 1 for axis in axes)) if axes else x
    assert np.array_equal(everything(data).numpy(), expected.astype("float32" if dtype != np.uint8 else dtype))
    facts = data.facts
    assert facts["kind"] == "image" and facts["shape"] == [*expected.shape[1:]] and facts["outputs"] == 4
    assert facts["dtype"] == ("uint8" if dtype == np.uint8 else "float32")
    train = expected[data.splits["train"].x.rows.numpy()].astype("float64") / (255 if dtype == np.uint8 else 1)
    assert facts["mean"] == pytest.approx(train.mean((0, 2, 3)).tolist())
    assert facts["std"] == pytest.approx(train.std((0, 2, 3)).tolist())


def test_parts_give_the_moments_of_the_whole(save, monkeypatch):
    x, y = images(500, 6, dtype=np.float32) + 1000, np.arange(500) % 2
    whole = save(x=x, y=y).facts
    monkeypatch.setattr(arrays, "CHUNK", 200)
    x[0] += 0  # the same content, but another time: nothing that is kept is found
    parts = save(x=x, y=y).facts
    assert parts["mean"] == pytest.approx(whole["mean"]) and parts["std"] == pytest.approx(whole["std"])


def test_what_was_found_out_is_kept_while_files_are_unchanged(save, monkeypatch):
    data = save(x=(x := images(30, 4)), y=np.arange(30) % 3)
    facts, fingerprint = data.facts, data.fingerprint
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "moments", lambda parts: pytest.fail("it was read again"))
        again = Arrays(data.path, data_dir=data.data_dir)
        assert again.facts == facts and again.fingerprint == fingerprint
    x[3] += 1
    changed = save(x=x, y=np.arange(30) % 3)
    assert changed.fingerprint != fingerprint
    assert save(x=x, y=(np.arange(30) + 1) % 3).fingerprint != changed.fingerprint


def test_a_file_of_large_samples_is_mapped_anew(save, monkeypatch):
    x = images(50, 4, 4)
    monkeypatch.setattr(arrays, "MAPPED", 40)
    samples = save(x=x, y=np.arange(50) % 2, val_fraction=0).splits["train"]
    for _ in range(3):
        first, rows = samples.x.values, samples.x.rows[[5, 0]]
        assert np.array_equal(samples.__getitems__([5, 0])[0][:, 0].numpy(), x[rows])
    assert samples.x.values is not first


@pytest.mark.parametrize(
    ("y", "classes", "first"),
    [
        ([3, 7, 3, 9] * 5, ["3", "7", "9"], 0),
        ([True, False] * 10, ["False", "True"], 1),
        (["cat 10", "cat 2"] * 10, ["cat 2", "cat 10"], 1),
        ([b"b", b"a"] * 10, ["a", "b"], 1),
        ([[2], [1]] * 10, ["1", "2"], 1),
        (["${oc.env:HOME}", "b"] * 10, ["${oc.env:HOME}", "b"], 0),
    ],
)
def test_whole_numbers_and_texts_are_classes(save, y, classes, first):
    data = save(x=images(20, 3), y=np.array(y))
    assert data.facts["classes"] == classes and data.read("train")[1][0] == first
    assert data.read("train")[1].dtype == torch.int64


def test_floats_are_targets_of_regression(save):
    y = np.linspace(0, 1, 20)
    data = save(x=images(20, 3), y=y)
    assert data.facts["kind"] == "table" and data.facts["outputs"] == 1 and data.read("train")[1].dtype == torch.float32
    assert save(x=images(20, 3), y=np.stack([y, y], 1)).facts["outputs"] == 2
    assert save(x=images(20, 3), y=y + 1.7e9).facts["target_std"] == pytest.approx(data.facts["target_std"], abs=1e-3)


def test_sequences_are_cut_to_their_lengths(save):
    lengths = np.arange(20) % 4 + 1
    x = images(20, 4, 2, dtype=np.float32)
    x[np.arange(4) >= lengths[:, None]] = np.nan
    data = save(x=x, y=np.arange(20) % 2, lengths=lengths)
    samples = data.splits["train"]
    (values, found), _, _ = samples.__getitems__([1, 4, 2])
    rows = samples.x.rows[[1, 4, 2]].numpy()
    assert found.tolist() == lengths[rows].tolist() and values.shape[1] == found.max()
    assert np.array_equal(values.numpy(), np.nan_to_num(x[rows])[:, : found.max()])
    facts, train = data.facts, x[samples.x.rows.numpy()]
    assert facts["kind"] == "sequence" and facts["shape"] == [None, 2]
    assert facts["mean"] == pytest.approx(np.nanmean(train, (0, 1)).tolist())
    assert save(x=x, y=np.arange(20) % 2, lengths=lengths[::-1].copy()[::-1]).fingerprint == data.fingerprint


def test_splits_of_its_own(save):
    given = {f"{split}_x": images(n, 3) for split, n in (("train", 20), ("val", 6), ("test", 4))}
    given |= {f"{split}_y": np.arange(n) % 2 for split, n in (("train", 20), ("val", 6), ("test", 4))}
    data = save(**given)
    assert [len(data.splits[split]) for split in ("train", "val", "test")] == [20, 6, 4]
    before = data.facts["mean"], data.fingerprint
    given["test_x"][0] += 1
    assert save(**given).facts["mean"] == before[0] and save(**given).fingerprint != before[1]


BAD = np.ones((20, 3))
BAD[7, 1] = np.inf


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"x": np.ones((20, 3))}, "must hold x and y"),
        ({"x": np.ones((20, 3)), "y": np.arange(19) % 2}, "20 samples but 19 targets"),
        ({"x": np.ones(20), "y": np.arange(20) % 2}, "x of .* must hold numbers of N x"),
        ({"x": np.array(["a"] * 20), "y": np.arange(20) % 2}, "x of .* must hold numbers of N x"),
        (
            {"x": np.array([[1], [2, 3]] * 10, dtype=object), "y": np.arange(20) % 2},
            "x of .* cannot be read.*lengths.npy",
        ),
        ({"x": np.ones((20, 3)), "y": np.array(["a", None] * 10)}, "y of .* cannot be read.*astype"),
        ({"x": BAD, "y": np.arange(20) % 2}, "NaN or infinity in sample 7"),
        ({"x": np.ones((20, 3)), "y": BAD[:, 1]}, "y of .* finite floats.*float64"),
        ({"x": np.ones((20, 3)), "y": np.ones((20, 3), int)}, r"y of .* must hold N whole numbers.*int64 of \[20, 3\]"),
        ({"x": np.ones((20, 4, 3)), "y": np.arange(20) % 2, "lengths": np.full(20, 5)}, "lengths of x .* 1 to T, 4"),
        ({"x": np.ones((20, 4, 3)), "y": np.arange(20) % 2, "layout": "NF"}, "numbers of N x F; got"),
        ({"x": np.ones((20, 3)), "y": np.arange(20) % 2, "layout": "FN"}, "`data.layout` must be auto or one of NF,"),
        (
            {"x": np.ones((20, 3)), "y": np.arange(20) % 2, "val_x": np.ones((3, 3)), "val_y": np.arange(3)},
            r"val_y of .* the classes \['2'\] that train does not have",
        ),
    ],
)
@pytest.mark.parametrize("form", ["npy", "npz"])
def test_what_makes_no_data_is_said(save, given, wrong, form):
    with pytest.raises(UserError, match=wrong):
        save(form, **given).facts  # noqa: B018


def test_a_path_of_nothing(tmp_path):
    for path in (tmp_path / "none", tmp_path / "x.npy"):
        with pytest.raises(UserError, match=r"`data.path` must be a folder with x.npy"):
            Arrays(path)


def test_numbers_that_float32_rounds_are_named(save, caplog):
    caplog.set_level("INFO")
    save(x=np.arange(40.0).reshape(20, 2) + 1.7e9, y=np.arange(20) % 2).facts  # noqa: B018
    assert "subtract the mean" in caplog.text


CASES = {
    "pictures": (lambda: {"x": images(60, 9, 8, 3)}, ["model=cnn"]),
    "floats": (lambda: {"x": images(60, 9, 8, dtype=np.float64)}, ["model=mlp"]),
    "table": (lambda: {"x": images(60, 5), "y": np.random.default_rng(1).random(60)}, ["task=regression", "model=mlp"]),
    "sequences": (
        lambda: {"x": images(60, 5, 2, dtype=np.float32), "lengths": np.arange(60) % 5 + 1},
        ["model=rnn", "model.hidden=8"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_command_takes_such_a_run(save, trained, typed, tmp_path, name):
    given, keys = CASES[name][0](), CASES[name][1]
    data = save(**{"y": np.array(["no", "yes"] * 30)} | given)
    run = trained(name, "data=arrays", f"data.path={data.path}", f"data_dir={data.data_dir}", *keys)
    found = []
    for source in ("split=test", f"input={data.path}/x.npy"):
        status, _, err = typed("predict.py", f"run={run}", source, f"output={tmp_path}/rows.csv", "overwrite=true")
        assert status == 0, err
        found.append(pd.read_csv(tmp_path / "rows.csv"))
    same = found[1].iloc[data.splits["test"].x.rows].reset_index()
    assert len(found[0]) == 9 and same["error"].isna().all()
    pd.testing.assert_series_equal(found[0]["prediction"], same["prediction"], rtol=1e-4)
    assert typed("export.py", f"run={run}")[0] == 0
    status, out, _ = typed("eval.py", f"run={run}")
    key, value = next((key, value) for key, value in Run(run).metrics["test"].items() if isinstance(value, float))
    assert status == 0 and f"{key} {value:.4g}" in out
    x = np.load(data.path / "x.npy")
    np.save(data.path / "x.npy", x[::-1])
    status, _, err = typed("eval.py", f"run={run}")
    assert status == 2 and "The data is not what the run was trained on" in err


@pytest.mark.slow
def test_a_resumed_run_ends_in_the_same_bits(save, trained, typed):
    data = save(x=images(90, 8, 8), y=np.arange(90) % 3)
    keys = ["data=arrays", f"data.path={data.path}", f"data_dir={data.data_dir}", "model=mlp", "scheduler=constant"]
    part, whole = trained("part", *keys), trained("whole", *keys, "trainer.max_epochs=3")
    status, _, err = typed("train.py", f"resume={part}", "trainer.max_epochs=3")
    assert status == 0, err
    assert Run(part).metrics["weights_sha256"] == Run(whole).metrics["weights_sha256"]
