"""What a key of a tree takes: its name, its sign, its value."""

import sys

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from leyden.launch.keys import constructor, flatten, hint, mistake, wrong_value
from leyden.run.keys import direction, role

SOURCE = {
    "leaf": "class Leaf:\n    def __init__(self, width: int, veins=3, *, colour='green'): ...\n"
    "class Needle(Leaf): ...\n"
    "class Any:\n    def __init__(self, **options): ...\n",
    "root": "class Root:\n    def __init__(self, weight: Tensor | None, rates: list[float], depth: int): ...\n",
    "stem": "from plant.leaf import Leaf\nclass Stem(Leaf):\n    def __init__(self, height, **leaf): ...\n"
    "def grow(step, total, rate=1.0): ...\nraise RuntimeError('imported')\n",
}


@pytest.fixture
def plant(tmp_path, monkeypatch):
    """A package whose constructors can be read, but not imported."""
    (tmp_path / "plant").mkdir()
    for name, text in SOURCE.items():
        (tmp_path / "plant" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    constructor.cache_clear()


def wrong(text, flat):
    return mistake(OverridesParser.create().parse_override(text), flat, {})


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("plant.leaf.Leaf", {"width", "veins", "colour"}),
        ("plant.leaf.Needle", {"width", "veins", "colour"}),
        ("plant.stem.Stem", {"height", "width", "veins", "colour"}),
        ("plant.stem.grow", {"step", "total", "rate"}),
        ("plant.leaf.Any", None),
        ("plant.leaf.NoSuch", None),
        ("plant.Leaf", None),  # no plain file
        ("nosuch.Thing", None),
        ("Thing", None),
    ],
)
def test_arguments_are_read_from_the_source(plant, target, names):
    found = constructor(target)
    assert (found and set(found)) == names
    assert "plant" not in sys.modules


def test_an_argument_that_is_not_in_the_yaml_takes_a_plus(plant):
    flat = flatten(
        {"part": {"_target_": "plant.leaf.Leaf", "width": 2, "colour": {"shape": "round"}}, "plain": {"x": 1}}
    )
    assert wrong("+part.veins=1", flat) == wrong("+part.colour.edge=1", flat) == ""
    assert "type +part.veins=1" in wrong("part.veins=1", flat)
    assert "did you mean part.veins?" in wrong("+part.vains=1", flat)
    assert "`plain.y` is not in" in wrong("+plain.y=1", flat) and "`new` is not in" in wrong("+new=1", flat)


def test_where_the_source_does_not_tell_plus_is_believed():
    flat = flatten({"part": {"_target_": "nosuch.Thing", "width": 2}})
    assert wrong("+part.more=1", flat) == ""
    assert "type +part.more=1" in wrong("part.more=1", flat)


@pytest.mark.parametrize(
    ("key", "usual", "value"),
    [("a.limit_val_batches", 1.0, 5), ("a.lr", 0.1, 1), ("a.x", None, [1]), ("a.x", "a", 3), ("a.x", "${b}", [1]),
     ("a.x", 1, "${b}"), ("a.x", 1, None)],
)  # fmt: skip
def test_values_that_fit(key, usual, value):
    assert wrong_value(key, {key: usual}, value) == ""


@pytest.mark.parametrize(
    ("key", "usual", "value", "words"),
    [("x", 1, 1.5, "whole number"), ("a.x", 1, True, "whole number"), ("a.x", 1.0, "b", "must be a number; got `b`"),
     ("a.x", True, 1, "true or false"), ("a.x", "b", [1], "text"), ("a.x", {"y": 1}, 2, "keys"),
     ("a.x", [1], 2, "a list"), ("a.x", {"y": "${z}"}, 2, "keys"),],
)  # fmt: skip
def test_values_that_do_not(key, usual, value, words):
    assert words in wrong_value(key, {key: usual}, value)


def test_a_constructor_says_what_else_it_takes(plant):
    flat = flatten({"part": {"_target_": "plant.leaf.Leaf", "width": 2, "veins": 3}})
    assert "whole number" in wrong_value("part.width", flat, 1.5) and wrong_value("part.veins", flat, 1.5) == ""
    assert wrong("+part.width.more=1", flat) == ""  # Hydra says it
    trainer = flatten({"_target_": "lightning.Trainer", "devices": 1, "deterministic": False, "fast_dev_run": False})
    trainer = {f"trainer.{key}": value for key, value in trainer.items()}
    for name, value in (("devices", "0,1"), ("deterministic", "warn"), ("fast_dev_run", 3)):
        assert wrong_value(f"trainer.{name}", trainer, value) == ""
    assert "true or false" in wrong_value("trainer.fast_dev_run", trainer, "auto")


def test_a_whole_number_in_a_yaml_takes_what_the_constructor_takes(plant):
    flat = flatten({"a": {"part": {"_target_": "plant.root.Root", "weight": 1, "rates": [1, 2], "depth": 3}}})
    for key, value in (("weight", 2.5), ("weight", [1]), ("rates.0", 2.5), ("rates", [0.5]), ("depth", 4)):
        assert wrong_value(f"a.part.{key}", flat, value) == ""
    assert "whole number" in wrong_value("a.part.depth", flat, 2.5)
    assert "a number" in wrong_value("a.part.rates.0", flat, "x")


def test_the_nearest_key_is_a_whole_or_a_last_part():
    known = ["trainer", "trainer.max_epochs", "trainer.min_epochs", "optimizer", "optimizer.lr"]
    for key, near in (
        ("epochs", known[1:3]),
        ("lr", known[4:]),
        ("optim.lr", known[4:]),
        ("trainre.x", known[:1]),
        ("foo", []),
    ):
        assert hint(key, known) == (f"; did you mean {' or '.join(near)}?" if near else ".")


@pytest.mark.parametrize(
    ("way", "names"),
    [
        ("min", "val/loss val/loss/dataloader_idx_0 val/dice_loss test/mse RMSE val/top1_error MeanSquaredError"),
        ("max", "val/acc/dataloader_idx_12 val/acc5 loss/acc val/f1_macro val/BinaryF1Score R2Score AUROC val/iou"),
        (None, "val/energy val/score glossy val/found val/acc_gap val/mse_acc val/loss_decrease val/accumulated"),
    ],
)
def test_only_a_name_that_is_certain_says_which_is_better(way, names):
    assert {name: direction(name) for name in names.split()} == dict.fromkeys(names.split(), way)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("trainer.max_epochs", "growth"), ("trainer.devices", "place"), ("threads", "place"), ("data.root", "path"),
        ("note", "label"), ("logger.csv.name", "label"), ("optimizer.lr", "identity"),
        ("trainer.precision", "identity"), ("data.num_workers", "harmless"), ("data", "identity"),
    ],
)  # fmt: skip
def test_each_key_has_one_role(key, expected):
    assert role(key) == expected
