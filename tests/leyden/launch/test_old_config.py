"""A command that starts from a run: what of its config is the run's, and what is typed on top of it."""

import pytest
from omegaconf import OmegaConf

from leyden import UserError
from leyden.launch import overrides, plan
from leyden.launch.line import split
from leyden.run import configs, paths
from leyden.run.run import Run


@pytest.fixture
def directory(tmp_path):
    """A run of an MLP in three epochs on two processes, whose config is almost all that there is."""
    line = [
        "model=mlp",
        "trainer=ddp",
        "trainer.devices=2",
        "trainer.max_epochs=3",
        "optimizer.lr=0.5",
        "callbacks=[ema]",
    ]
    tree = overrides.compose(split(line, "train"), paths.CONF).tree
    OmegaConf.save(overrides.without_hydra(tree), tmp_path / "config.yaml")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last.ckpt").touch()
    return tmp_path


def config(directory, purpose, *typed, config="train"):
    line, asked = split(list(typed), config), {purpose: str(directory)}
    return plan.stored_config(line, Run(directory), purpose, asked).tree


def test_an_evaluation_takes_all_but_trainer_and_logger_from_the_run(directory):
    tree = config(directory, "run", "trainer=cpu", "data.batch_size=7", config="eval")
    assert tree.model._target_.endswith("MLP") and tree.data.batch_size == 7 and tree.split == "test"
    assert tree.trainer.accelerator == "cpu" and not tree.callbacks
    with pytest.raises(UserError, match="what can: trainer, logger"):
        config(directory, "run", "data=ink", config="eval")


def test_a_trainer_that_is_typed_says_where_a_run_goes_on_and_not_how_long(directory):
    tree = config(directory, "resume", "trainer=cpu")
    assert (tree.trainer.accelerator, tree.trainer.devices, tree.trainer.max_epochs) == ("cpu", 1, 3)
    assert tree.exact is True and tree.optimizer.lr == 0.5


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("optimizer.lr=1", "init_from"), ("data.batch_size=3", "exact=false"), ("model=cnn", "what can: trainer"),
        ("callbacks=[]", "would change the numbers"), ("sed=1", "did you mean seed"), ("threads=3", "exact=false"),
        ("seed=1", "exact=false"), ("trainer.accumulate_grad_batches=2", "exact=false"),
    ],
)  # fmt: skip
def test_what_would_change_the_numbers_is_refused(directory, typed, words):
    with pytest.raises(UserError, match=words):
        config(directory, "resume", typed)


@pytest.mark.parametrize(
    "typed", ["data.batch_size=3 exact=false", "trainer.max_epochs=9", "note=x", "data.num_workers=2"]
)
def test_what_changes_no_number_may_be_typed(directory, typed):
    config(directory, "resume", *typed.split())


def test_a_run_is_repeated_with_other_groups_and_keys(directory):
    tree = config(directory, "rerun", "model=cnn", "model.channels=[4]", "seed=3")
    assert tree.model.channels == [4] and "hidden" not in tree.model and tree.optimizer.lr == 0.5 and tree.seed == 3
    assert tree.rerun == str(directory) and tree.name is None
    with pytest.raises(UserError, match="what can: model"):
        config(directory, "rerun", "experiment=digits_cnn")
    with pytest.raises(UserError, match="with rerun= keys"):
        config(directory, "rerun", "-m", "callbacks=[ema],[finite]")


def test_a_path_is_no_interpolation():
    for text in ("${a} {b} $c", "\\${a}", "\\\\${a}\\", "$${a}", "${${a}", "'${a}\""):
        tree = OmegaConf.create(
            {"input": configs.literal(text), "again": "${input}", "list": configs.literal([{"x": text}])}
        )
        assert tree.input == tree.again == tree["list"][0].x == text
        assert OmegaConf.create(OmegaConf.to_yaml(tree)).input == text
