import shutil

import pytest
import torch

import leyden
from conftest import SMALL
from leyden import UserError
from leyden.resume import checkpoints
from leyden.resume.checkpoints import AtomicIO
from leyden.run import build, configs, paths
from leyden.run.run import Run

FOREIGN = paths.PROJECT / "tests" / "foreign" / "conf"


def test_facts_are_not_typed(train):
    with pytest.raises(UserError, match="`facts` must be left out"):
        train("facts={outputs:7}")


def test_a_fact_that_is_missing_is_what_the_datamodule_lacks(configure):
    cfg = configure("data._target_=mine.Data")
    cfg.facts = {"outputs": 2}
    with pytest.raises(UserError, match=r"^The datamodule mine\.Data has no `shape` in its dict `facts`, which model"):
        build.task(cfg)


def test_a_key_that_no_constructor_takes(train):
    with pytest.raises(UserError, match="nonsense"):
        train("+optimizer.nonsense=1")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("+callbacks.mine.patience=3", "`callbacks.mine` must be a Callback; got `builtins.dict`"),
        ("+callbacks.mine=3", "callbacks.mine cannot be built"),
    ],
)
def test_a_callback_without_a_target(train, key, said):
    with pytest.raises(UserError, match=said):
        train(key)


def test_half_precision_on_a_cpu_is_said_and_stored(train):
    run = train("trainer.precision=16-mixed", "trainer.max_epochs=1")
    assert Run(run).record["precision"] == "bf16-mixed"
    assert (run / "train.log").read_text().count("running in bf16-mixed") == 1


def test_a_refusal_of_lightning_is_a_sentence(train):
    with pytest.raises(UserError, match="trainer cannot be built"):
        train("trainer.gradient_clip_algorithm=nonsense", "trainer.gradient_clip_val=1")


def test_plugins_of_the_trainer_are_built_beside_ours(configure):
    node = "{_target_:lightning.pytorch.plugins.MixedPrecision,precision:bf16-mixed,device:cpu}"
    more = ["logger=[]", "trainer.precision=null", "trainer.accelerator=cpu"]
    trainer = build.trainer(configure(f"+trainer.plugins=[{node}]", *more), [])
    assert trainer.precision == "bf16-mixed" and isinstance(trainer.strategy.checkpoint_io, AtomicIO)
    for wrong in (node, "5"):
        with pytest.raises(UserError, match=r"trainer\.plugins"):
            build.trainer(configure(f"+trainer.plugins={wrong}", *more), [])


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
        ("trainer.benchmark=1:30", "trainer cannot be built: set_benchmark_cudnn expects a bool, but got str."),
        ("trainer.gradient_clip_algorithm=inf", "trainer cannot be built: 'float' object has no attribute 'lower'."),
        ("trainer.max_time=3600", '`trainer.max_time` must be null or a text "DD:HH:MM:SS", in quotes; got `3600`.'),
        ("experiment=sexagesimal", 'must be null or a text "DD:HH:MM:SS", in quotes; got `2592000`.'),
        ("trainer.val_check_interval=0", "`trainer.val_check_interval` must be above 0; got `0`."),
        ("trainer.val_check_interval=1:30", "trainer cannot be built: "),
        ("trainer.log_every_n_steps=0", "`trainer.log_every_n_steps` must be above 0; got `0`."),
        ("trainer.precision=7", "trainer cannot be built: Precision 7 is invalid"),
        ("trainer._target_=torch.nn.Identity", "`trainer` must be a Trainer; got `torch.nn.modules.linear.Identity`."),
        ("model.hidden=[a]", "task.model cannot be built"),
        ("~model._target_", "`task.model` must be a module with a `_target_`; got `{'in_shape'"),
        (
            "task={_target_:torch.nn.Identity}",
            "`task` must be a LightningModule; got `torch.nn.modules.linear.Identity`",
        ),
        ("task.model=off", "`task.model` must be a module with a `_target_`; got `off`."),
        (
            "task.model={_target_:torch.nn.LazyLinear,out_features:10}",
            "`task` must be of layers with all",
        ),
        ("task.optimizer=1.5", "`optimizer` must be a class or a function with `_partial_: true`; got `1.5`."),
        ("task.scheduler=abc", "`scheduler` must be a class or a function with `_partial_: true`; got `abc`."),
        ("task.classes='*'", "cannot be built: `classes` must be 10 names; got `*`."),
        ("data={_target_:torch.nn.Identity}", "`data` must be a LightningDataModule; got"),
        ("data.train_transforms=[1]", "give samples that make no batch: 'int' object is not callable"),
        ("data.seed=abc", "`data.seed` must be a whole number from 0 up; got `abc`."),
        ("+callbacks.mine={_target_:torch.nn.Identity}", "`callbacks.mine` must be a Callback; got"),
        ("checkpoint.every_n_steps=0", "`checkpoint.every_n_steps` must be null or a whole number from 1 up; got `0`."),
        ("threads={a:1}", "`threads` must be null or a whole number from 1 up; got `{'a': 1}`."),
        ("init_from=0.1", "0.1 is no run directory"),
        ("init_from={a:1}", "is no run directory"),
        ("matmul_precision=low", "`matmul_precision` must be one of highest, high, medium; got `low`"),
        ("~trainer.precision", "Key 'precision' is missing."),
    ],
)
def test_what_a_constructor_does_not_take_is_a_sentence(script, tmp_path, typed, said):
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    in_base_60 = "# @package _global_\ntrainer:\n  max_time: 12:00:00:00\n"
    (tmp_path / "conf" / "experiment" / "sexagesimal.yaml").write_text(in_base_60)
    model = [] if typed.startswith("task.model=") else ["model=mlp"]  # a model that nobody names is refused
    line = [
        *(key for key in SMALL if key != "model=mlp"),
        *model,
        "debug=fast",
        "threads=1",
        "logger=[]",
        "name=a",
        f"log_dir='{tmp_path}'",
    ]
    status, _, wrong = script("train.py", "--config-dir", str(tmp_path / "conf"), *line, typed)
    assert status == 2 and len(wrong.splitlines()) == 1 and said in wrong, wrong


TEACHERS = {"yaml": "task.teacher.run=latest", "constructor": "task.teacher=latest"}


@pytest.mark.slow
@pytest.mark.parametrize("place", TEACHERS)
def test_a_teacher_is_a_run_that_was_found_and_does_not_learn(place, train, script, tmp_path):
    (tmp_path / "train").mkdir()
    logs, search = tmp_path / "train", f"--config-dir={FOREIGN}"
    old, teacher = train(folder="train/old"), train("seed=1", "model.hidden=[9]", folder="train/teacher")
    keys = [search, *SMALL, f"log_dir='{tmp_path}'", "task=distill", "trainer.max_epochs=1"]
    status, _, wrong = script("train.py", *keys, TEACHERS[place], "name=student", "optimizer.scale_lr=true")
    assert status == 0, wrong
    shutil.rmtree(old)
    run, content = Run(logs / "student"), checkpoints.read(logs / "student" / "checkpoints" / "last.ckpt")
    stored = configs.stored(run.directory)
    assert "latest" not in str(stored) and str(stored).count(str(teacher)) == 1
    before = checkpoints.read(Run(teacher).checkpoint())["state_dict"]
    kept = {k.removeprefix("teacher.module."): v for k, v in content["state_dict"].items() if k.startswith("teacher.")}
    assert kept.keys() == before.keys() and all(torch.equal(kept[name], before[name]) for name in kept)
    groups = content["optimizer_states"][0]["param_groups"]
    assert sum(len(group["params"]) for group in groups) == len([k for k in content["state_dict"] if "student" in k])

    common = ["trusted=[foreign]", f"log_dir='{tmp_path}'"]
    for name, *more in (
        ["eval.py", "run=student"],
        ["predict.py", "run=student", "split=test"],
        ["export.py", "run=student", f"output={tmp_path}/a.onnx"],
        ["train.py", "rerun=student", "name=again"],
        ["train.py", "resume=student", "trainer.max_epochs=2"],
    ):
        status, said, wrong = script(name, *more, *common)
        assert status == 0, wrong
        if name == "eval.py":
            assert f"test/like {run.metrics['test']['test/like']:.4f}" in said
    assert Run(logs / "again").metrics["weights_sha256"] == checkpoints.sha256(content["state_dict"])


def test_a_job_of_a_sweep_has_no_teacher_of_its_sweep(tmp_path):
    for number, place in enumerate(("train/old", "sweep/s/0")):
        run = Run(tmp_path / place)
        run.checkpoints.mkdir(parents=True)
        run.last.touch()
        run.update(started=f"2026-01-0{number + 1}T00:00:00+00:00")
    assert paths.find("latest", tmp_path).directory == tmp_path / "sweep/s/0"
    assert paths.find("latest", tmp_path, sweep=tmp_path / "sweep/s").directory == tmp_path / "train/old"


def test_a_model_of_a_run_in_python(train, tmp_path):
    run = train("trainer.max_epochs=1", "model.dropout=0.5")
    frozen, free = leyden.load_model(run), leyden.load_model(run / "checkpoints" / "last.ckpt", frozen=False)
    x = torch.rand(4, 1, 8, 8)
    assert not frozen.train().training and torch.equal(frozen(x), free.eval()(x))
    assert [parameter.requires_grad for parameter in frozen.parameters()] == [False] * len(list(free.parameters()))
    assert all(parameter.requires_grad for parameter in free.parameters())
    with pytest.raises(UserError, match="is no run directory"):
        leyden.load_model(tmp_path / "none")
