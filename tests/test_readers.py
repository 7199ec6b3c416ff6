"""What stands for a run: its directory, or a file that was exported."""

import pytest
from omegaconf import OmegaConf

from leyden import UserError, overrides
from leyden.readers import from_file, from_run, literal


def test_a_file_in_place_of_a_run():
    line = overrides.split(["trainer=cpu", "batch_size=7"], "predict")
    tree = from_file(line, {"model": "a/${x}=1.onnx"})
    assert OmegaConf.create(OmegaConf.to_yaml(tree)).model == "a/${x}=1.onnx"
    assert tree.trainer.accelerator == "cpu" and tree.run is None and line.keys == ["batch_size=7"]
    with pytest.raises(UserError, match="two answers"):
        from_file(line, {"model": "a.onnx", "run": "latest"})


def test_groups_come_from_the_run():
    with pytest.raises(UserError, match="only trainer and logger"):
        from_file(overrides.split(["data=digits"], "predict"), {"model": "a.onnx"})
    with pytest.raises(UserError, match="Which run"):
        from_run(overrides.split([], "eval"), None)


def test_a_path_is_no_interpolation():
    for text in ("${a} {b} $c", "\\${a}", "\\\\${a}\\", "$${a}", "${${a}", "'${a}\""):
        tree = OmegaConf.create({"input": literal(text), "again": "${input}", "list": literal([{"x": text}])})
        assert tree.input == tree.again == tree["list"][0].x == text
        assert OmegaConf.create(OmegaConf.to_yaml(tree)).input == text
