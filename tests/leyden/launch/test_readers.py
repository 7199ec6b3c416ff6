"""A command that starts from a run: what of its config is the run's, and what the command's own."""

import pytest
from omegaconf import OmegaConf

from leyden import UserError
from leyden.launch import overrides
from leyden.launch.readers import from_run, literal, owned


def test_groups_come_from_the_run():
    line = overrides.split(["trainer=cpu", "batch_size=7"], "predict")
    assert owned(line).trainer.accelerator == "cpu" and line.keys == ["batch_size=7"]
    with pytest.raises(UserError, match="only trainer and logger"):
        owned(overrides.split(["data=digits"], "predict"))
    with pytest.raises(UserError, match="Which run"):
        from_run(overrides.split([], "eval"), None)


def test_a_path_is_no_interpolation():
    for text in ("${a} {b} $c", "\\${a}", "\\\\${a}\\", "$${a}", "${${a}", "'${a}\""):
        tree = OmegaConf.create({"input": literal(text), "again": "${input}", "list": literal([{"x": text}])})
        assert tree.input == tree.again == tree["list"][0].x == text
        assert OmegaConf.create(OmegaConf.to_yaml(tree)).input == text
