"""A file is written whole or not at all; rows and arrays of predictions."""

import csv
import json

import numpy as np
import pytest
import torch

from leyden import UserError
from leyden.deploy.predictor import save, table, writing


def test_it_takes_its_place_at_the_end(tmp_path):
    with writing(tmp_path / "new" / "a.txt") as beside:
        beside.write_text("all")
        assert not (tmp_path / "new" / "a.txt").exists()
    assert (tmp_path / "new" / "a.txt").read_text() == "all" and len(list((tmp_path / "new").iterdir())) == 1


def test_after_an_error_all_is_as_before(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    for path in (tmp_path / "a.txt", tmp_path / "new" / "a.txt"):
        with pytest.raises(KeyboardInterrupt), writing(path, overwrite=True) as beside:
            beside.write_text("half")
            raise KeyboardInterrupt
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"] and (tmp_path / "a.txt").read_text() == "old"


def test_what_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    for path, said in (("a.txt", "overwrite=true"), ("", "there already"), ("a.txt/b.txt", "cannot")):
        with pytest.raises(UserError, match=said), writing(tmp_path / path):
            pytest.fail("it was not refused")
    assert (tmp_path / "a.txt").read_text() == "old"


def test_what_cannot_be_read_is_not_called_unwritable(tmp_path):
    with pytest.raises(FileNotFoundError), writing(tmp_path / "a.txt"):
        (tmp_path / "missing.txt").read_text()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_batches_go_to_one_file(tmp_path, ending):
    path = tmp_path / f"o{ending}"
    parts = [{"name": [f"ü\n{part}", "b"], "error": [None, "bad"]} for part in range(3)]
    with writing(path) as beside:
        save(parts, path, beside, False)
    assert list(tmp_path.iterdir()) == [path]
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file)) if ending == ".csv" else [json.loads(line) for line in file]
    assert [row["name"] for row in rows] == ["ü\n0", "b", "ü\n1", "b", "ü\n2", "b"] and rows[1]["error"] == "bad"


def test_the_screen(capsys):
    parts = [{"name": ["a"], "prediction": ["cat"]}, {"name": ["long"], "prediction": [None]}]
    save([part | {"error": [None]} for part in parts], None, None, False)
    assert capsys.readouterr().out.splitlines() == ["name,prediction,error", "a,cat,", "long,,"]


def test_a_task_of_ones_own(tmp_path):
    parts = []
    for size in (3, 2):
        outputs = {"label": torch.arange(size), "mask": torch.ones(size, 4, 4).bfloat16(), "word": ["x"] * size}
        parts.append(outputs | {"prob": torch.ones(size, 1) / 3})
    with writing(tmp_path / "o.csv") as beside:
        save(parts, tmp_path / "o.csv", beside, False)
    with open(tmp_path / "o.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == list("01234")
    assert rows[4] == {"name": "4", "label": "1", "word": "x", "prob": "0.33333334", "error": ""}
    assert np.load(tmp_path / "o.npz")["mask"].shape == (5, 4, 4)
    with pytest.raises(UserError, match="type output="):
        save(parts, None, None, False)
    for wrong in (torch.zeros(3), {}, {"a": torch.zeros(3), "b": torch.zeros(2)}, {"a": torch.tensor(1.0)}):
        with pytest.raises(UserError, match="`predict_step` must return"):
            table([wrong])
