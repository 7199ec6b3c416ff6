import pytest

from leyden import UserError
from leyden.run.run import Run


def test_facts_are_not_typed(train):
    with pytest.raises(UserError, match="`facts` must be left out"):
        train("facts={outputs:7}")


def test_a_key_that_no_constructor_takes(train):
    with pytest.raises(UserError, match="nonsense"):
        train("+optimizer.nonsense=1")


@pytest.mark.parametrize("key", ["+callbacks.mine.patience=3", "+callbacks.mine=3"])
def test_a_callback_without_a_target(train, key):
    with pytest.raises(UserError, match=r"`callbacks\.mine` must be a node with a _target_; got `"):
        train(key)


def test_half_precision_on_a_cpu_is_said_and_stored(train):
    run = train("trainer.precision=16-mixed", "trainer.max_epochs=1")
    assert Run(run).record["precision"] == "bf16-mixed"
    assert (run / "train.log").read_text().count("running in bf16-mixed") == 1


def test_a_refusal_of_lightning_is_a_sentence(train):
    with pytest.raises(UserError, match="trainer cannot be built"):
        train("trainer.gradient_clip_algorithm=nonsense", "trainer.gradient_clip_val=1")


@pytest.mark.slow
def test_one_seed_one_set_of_weights(train):
    first, again, other = (
        Run(train(f"seed={seed}", "trainer.max_epochs=1", folder=str(i))).metrics["weights_sha256"]
        for i, seed in enumerate((0, 0, 1))
    )
    assert first == again != other


def test_each_watcher_has_the_direction_of_what_it_watches_or_asks_for_it(configure):
    assert (
        configure("objective=val/loss").checkpoint.mode == "min"
        and configure("objective=val/f1").checkpoint.mode == "max"
    )
    watchers = ["callbacks=[early_stopping]", "scheduler=plateau"]
    tree = configure(*watchers, "objective=val/energy", "checkpoint.mode=min")
    assert tree.callbacks.early_stopping.mode == tree.scheduler.mode == "min"
    tree = configure(*watchers, "callbacks.early_stopping.monitor=val/loss", "task.monitor=val/loss")
    assert (tree.checkpoint.mode, tree.callbacks.early_stopping.mode, tree.scheduler.mode) == ("max", "min", "min")


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("`checkpoint.mode` must be min or max.*got `None`", ["objective=val/energy"]),
        ("`checkpoint.mode` must be min or max.*got `lower`", ["checkpoint.mode=lower"]),
        ("`scheduler.mode` must be min or max", ["scheduler=plateau", "task.monitor=val/energy"]),
        (
            "early_stopping cannot be built: `mode` can be min, max, got None",
            ["callbacks=[early_stopping]", "callbacks.early_stopping.monitor=val/energy"],
        ),
    ],
)
def test_a_direction_that_nobody_knows_is_asked_for(train, said, typed):
    with pytest.raises(UserError, match=said):
        train(*typed)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("trainer.gradient_clip_algorithm=inf", "trainer"),
        ("trainer.max_time=3600", "trainer"),
        ("trainer.precision=7", "trainer"),
        ("model.hidden=[a]", "task.model cannot be built"),
        ("init_from=0.1", "0.1 is no run directory"),
        ("init_from={a:1}", "is no run directory"),
        ("matmul_precision=low", "`matmul_precision` must be one of highest, high, medium; got `low`"),
    ],
)
def test_what_a_constructor_does_not_take_is_a_sentence(script, tmp_path, typed, said):
    small = ["data=fake", "model=mlp", "debug=fast", "threads=1", f"log_dir='{tmp_path}'", "logger=[]"]
    status, _, wrong = script("train.py", *small, typed)
    assert status == 2 and len(wrong.splitlines()) == 1 and said in wrong, wrong
