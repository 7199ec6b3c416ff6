"""The command line's mistakes are found before torch is imported, all at once, each with what to type instead."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from leyden import UserError
from leyden.launch import overrides
from leyden.launch.keys import flatten
from leyden.launch.line import split
from leyden.run import configs, paths

CONF = paths.PROJECT / "conf"


def check(*argv: str, config: str = "train", conf: Path = CONF, stored: DictConfig | None = None) -> DictConfig:
    merge = stored and (lambda composed: with_hydra(stored, composed))
    return overrides.compose(split(list(argv), config), conf, merge).tree


def with_hydra(stored: DictConfig, composed: DictConfig) -> DictConfig:
    tree = stored.copy()
    tree.hydra = composed.hydra
    OmegaConf.set_struct(tree, True)
    return tree


def mistakes(*argv: str, **more) -> list[str]:
    with pytest.raises(UserError) as caught:
        check(*argv, **more)
    return str(caught.value).splitlines()


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def project(tmp_path) -> Path:
    """A conf folder of its own."""
    main = "defaults:\n  - _self_\n  - part: leaf\nsize: 1\nfacts: null\n"
    return write(tmp_path / "conf", {"main.yaml": main, "part/leaf.yaml": "width: 2\n"})


MISTAKES = [
    ("optimzer.lr=1", "did you mean optimizer.lr?"),
    ("model=cn", "did you mean cnn?"),
    ("+trainer.max_epoch=3", "did you mean trainer.max_epochs?"),
    ("++trainre.x=1", "did you mean trainer?"),
    ("+experiment=nosuch", "`experiment` must be one of"),
    ("trainer.max_epochs=abc", "a whole number"),
    ("lr=1e-3", "did you mean optimizer.lr?"),
    ("epochs=3", "did you mean trainer.max_epochs?"),
    ("~logger", "logger=[]"),
    ("data.batchsize=3", "did you mean data.batch_size?"),
    ("optimizer.lr=", "must be a number"),
    ("model", "'key=[a,b]'"),
    ("note=a#b", "'key=\"a, b\"'"),
    ("optimizer.betas=0.8,0.9", "'key=[a,b]'"),
    ("model=cnn,mlp", "-m"),
    ("model=[cnn,mlp]", "`model` must be one of"),
    ("hydra/launcher=nosuch", "basic"),
    ("callbacks=null", "type 'callbacks=[]'"),
    ("logger=[tensorboard,wandbb]", "did you mean wandb?"),
    ("data=_loader", "got `_loader`"),
    ("task/loss=mean", "weighted_cross_entropy"),
    ("facts.outputs=3", "type +facts.outputs=3"),
    ("callbacks.ema.decay=0.9", "type 'callbacks=[ema]'."),
    ("+callbacks.early_stopping.patience=3", "type 'callbacks=[early_stopping]'."),
    ("logger.wandb.project=x", "type 'logger=[tensorboard,wandb]'."),
    ("callbacks.mine.x=1", "type +callbacks.mine.x=1."),
]


def test_all_mistakes_at_once_in_a_line_each():
    lines = mistakes(*(typed for typed, _ in MISTAKES))
    assert len(lines) == len(MISTAKES)
    for _, words in MISTAKES:
        assert any(words in line for line in lines), words


ALONE = [
    ("~nosuch.key", "nosuch.key"),  # from here on Hydra finds it
    ("+trainer.max_epochs=3", "already"),
    ("+model=mlp", "Multiple values for model"),
    ("++model=mlp", "not supported"),
    ("hydra.sweap.dir=a", "hydra.sweap"),
    ("checkpoint={monitr: val/loss}", "checkpoint"),
    ("--config-name=nosuch", "nosuch"),
    ("--config-dir=/nosuch", "/nosuch"),
]


@pytest.mark.parametrize(("typed", "words"), ALONE)
def test_a_mistake_is_one_sentence(typed, words):
    (line,) = mistakes(typed)
    assert words in line


@pytest.mark.parametrize(
    "argv",
    [
        ["task/loss=focal", "task.loss.gamma=1"],
        ["logger=[tensorboard,mlflow]", "callbacks=[early_stopping]", "callbacks.early_stopping.patience=3"],
        ["logger=[]", "callbacks=[]", "~profiler", "~optimizer.betas"],
        ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=/x", "+hydra.job.env_set.A=b"],
        ["optimizer.lr=null", "seed=null", "trainer.max_time='00:12:00:00'"],
        ["seed=${oc.env:X}", "data.batch_size=${seed}"],
        ["trainer=ddp", "trainer.devices=auto", "trainer.max_epochs=-1"],
        ["trainer.devices=[0,1]", "trainer.deterministic=warn", "trainer.precision=16", "data.num_workers=auto"],
        ["debug=fast", "trainer.limit_test_batches=1.0", "trainer.val_check_interval=10"],
        ["+trainer.min_epochs=3", "++trainer.max_epochs=3", "optimizer.betas=[0.8,1]", "optimizer.betas.0=0.7"],
        ["+facts.outputs=3"],
        ["facts={outputs: 3}", "checkpoint={monitor: val/loss}"],
        ["name=exp-1.b", "tags=[a,b]", "note='a (b) #c'", "log_dir='/a b'"],
        ["+optimizer.amsgrad=true", "+model._convert_=all", "+logger.mine={_target_: a.B}"],
        ["~scheduler", "+scheduler={_target_: a.B}"],
        ["-m", "model=cnn,mlp", "optimizer.lr=1e-3,1e-2", "seed=range(3)", "logger=[wandb],[tensorboard]"],
        ["-m", "optimizer.lr=interval(1e-4,1e-1)", "trainer.max_epochs=interval(1,10)", "scheduler=glob(*)"],
        ["--cfg", "job", "-p", "model"],
    ],
    ids=" ".join,
)
def test_what_is_right_passes(argv):
    check(*argv)


FROM_ELSEWHERE = [
    ("ckpt_path=a/b.ckpt", "resume=<run>"), ("+ckpt_path=epoch=1.ckpt", "resume=<run>"), ("~ckpt_path", "resume=<run>"),
    ("train=False", "src/eval.py run=<run>"), ("++train=False", "src/eval.py"), ("fit", "src/train.py trains"),
    ("hparams_search=mnist_optuna", "search=optuna"), ("task_name=a", "name=<name>"),
    ("optimized_metric=val/acc_best", "objective=<metric>"), ("model.optimizer.lr=0.1", "type optimizer.lr=<value>."),
    ("+model.scheduler.gamma=1", "type scheduler.gamma=<value>."),
    ("paths.data_dir=/x", "data_dir=<folder>"), ("paths.log_dir=/x", "log_dir=<folder>"),
    ("extras.print_config=true", "--cfg job"), ("trainer=ddp_sim", "type trainer=ddp."), ("debug=default", "fast"),
    ("callbacks=none", "'callbacks=[]'"), ("callbacks=[default]", "'callbacks=[]'"), ("logger=csv", "metrics.csv"),
    ("logger=many_loggers", "'logger=[tensorboard,wandb]'"), ("+trainer.callbacks=[]", "type 'callbacks=[<option>]'"),
    ("+trainer.default_root_dir=x", "log_dir=<folder>"), ("--ckpt_path=x", "resume=<run>"),
    ("--trainer.max_epochs=3", "typed as in trainer.max_epochs=3."),
]  # fmt: skip


@pytest.mark.parametrize(("typed", "words"), FROM_ELSEWHERE)
def test_a_name_of_another_template_is_answered(typed, words):
    (line,) = mistakes(typed)
    assert words in line
    (line,) = mistakes(typed, "-m", "seed=1,2")
    assert words in line


def test_each_mistake_is_said_once_and_with_few_names():
    assert len(mistakes("-m", "ckpt_path=a,b,c")) == 1
    for typed in ("model.nonsense=1", "nonsense=1", "loss=1", "epochs=3", "data=nonsense"):
        (line,) = mistakes(typed)
        assert len(line) < 200 and ("--cfg job" in line or "--help" in line)


@pytest.mark.parametrize("config", ["train", "benchmark"])
def test_every_number_of_the_tree_may_be_typed_again(config):
    flat = flatten(OmegaConf.to_container(check(config=config), resolve=False))
    typed = [f"{key}={value}" for key, value in flat.items() if type(value) in (int, float, bool)]
    assert len(typed) > 30
    check(*typed, config=config)


@pytest.mark.slow
def test_every_option_of_every_group_passes():
    offer: dict[str, list[str]] = {}
    for file in CONF.glob("*/**/[!_]*.yaml"):
        offer.setdefault(file.parent.relative_to(CONF).as_posix(), []).append(file.stem)
    check("-m", *(f"{group}={','.join(offer[group])}" for group in offer if "/" not in group))
    check("-m", *(f"{group}={','.join(offer[group])}" for group in offer if "/" in group))


def test_the_tree_has_the_overrides_and_keeps_interpolations():
    tree = check("model=mlp", "optimizer.lr=0.5", "seed=7", "~optimizer.betas", "+facts.shape=[1,8,8]")
    assert tree.model._target_.endswith("MLP") and tree.optimizer.lr == 0.5 and tree.data.seed == 7
    assert "betas" not in tree.optimizer and tree.model.in_shape == [1, 8, 8]
    assert OmegaConf.to_container(tree, resolve=False)["data"]["seed"] == "${seed}"
    assert not GlobalHydra.instance().is_initialized()


def test_each_value_of_a_sweep_is_checked():
    lines = mistakes("-m", "optimizer.lr=1e-3,abc", "model=mlp,cn", "data.batch_size=choice(1,x)")
    for word in ("`cn`", "`abc`", "`x`"):
        assert sum(f"got {word}" in line for line in lines) == 1 and len(lines) == 3
    assert check("-m", "model=mlp,cnn", "optimizer.lr=0.1,0.2").optimizer.lr == 0.1
    assert check("-m", "optimizer.weight_decay=interval(0,1)").optimizer.weight_decay == 0.01  # no whole number


def test_the_ranges_of_a_search_are_checked_as_if_they_were_typed(tmp_path):
    params = "      model: cnn,mpl\n      optimizer.lr: interval(x)\n      modl: 1,2\n      data.batch_size: range(1,1)"
    head = "# @package _global_\ndefaults: [override /hydra/sweeper: grid]\nhydra:\n  mode: MULTIRUN\n  sweeper:\n"
    write(tmp_path, {"search/mine.yaml": f"{head}    params:\n{params}\n"})
    lines = mistakes("-cd", str(tmp_path), "search=mine")
    assert len(lines) == 3 and "got `mpl`; did you mean mlp?" in lines[0] and "interval(x) cannot be read" in lines[1]
    (line,) = mistakes("-cd", str(tmp_path), "search=mine", "model=mlp", "optimizer.lr=1e-3")  # which count instead
    assert "did you mean model?" in line


def test_a_key_of_one_model_is_missing_in_the_other():
    (line,) = mistakes("-m", "model=mlp,cnn", "model.hidden=[3]")
    assert "model.hidden" in line
    assert "model.hidden" in mistakes("-m", "model=cnn,mlp", "model.hidden=[3]")[0]


# what a task of the user's own names of the config

OWN = {
    "alone": "width: 4\n",
    "whole": "_recursive_: false\noptimizer: ${optimizer}\nscheduler: ${oc.select:scheduler,null}\nnet: ${model}\n",
    "part": "rate: ${oc.select:task.other,${optimizer.lr}}\n",
}


@pytest.fixture
def own(tmp_path) -> Path:
    """A folder of configs with tasks of the user's own, and an experiment."""
    files = {f"task/{name}.yaml": f"_target_: mine.Task\n{text}" for name, text in OWN.items()}
    files["experiment/typed.yaml"] = (
        "# @package _global_\ndefaults:\n  - override /task: alone\n  - override /optimizer: sgd\noptimizer:\n  lr: 1\n"
    )
    return write(tmp_path / "own", files)


@pytest.mark.parametrize(
    ("task", "typed"),
    [
        ("alone", ["optimizer.lr=1e-3"]),
        ("alone", ["-m", "optimizer.lr=1e-3,1e-2"]),
        ("alone", ["optimizer=sgd"]),
        ("alone", ["+model._convert_=all"]),
        ("alone", ["scheduler.final=0.1", "optimizer.lr=1"]),
        ("part", ["scheduler=cosine"]),
        ("alone,whole", ["-m", "optimizer.lr=1"]),
    ],
)
def test_what_would_change_nothing_is_refused(own, task, typed):
    lines = mistakes("-cd", str(own), f"task={task}", *typed)
    keys = [key for key in typed if key != "-m"]
    assert len(lines) == len(keys)
    for key, line in zip(keys, lines, strict=True):
        group = key.lstrip("+").replace("=", ".").split(".")[0]
        assert line.startswith(f"{key}: ") and f"add {group}: ${{{group}}} to the YAML of the task." in line


@pytest.mark.parametrize(
    ("task", "typed"),
    [
        ("whole", ["optimizer.lr=1e-3", "scheduler=cosine", "model.dropout=0.5"]),
        ("part", ["-m", "optimizer.lr=1,2"]),
        ("alone", ["+task.optimizer=${optimizer}", "optimizer.lr=1"]),
        ("alone", ["-m", "+task.optimizer=null,${optimizer}", "optimizer.lr=1"]),
        ("alone", ["~optimizer", "~scheduler", "task.width=5"]),
    ],
)
def test_what_is_named_may_be_typed(own, task, typed):
    check("-cd", str(own), f"task={task}", *typed)


def test_what_an_experiment_says_is_not_typed(own):
    check("-cd", str(own), "experiment=typed", "task.width=2")
    assert (
        "nothing in the config names ${optimizer}" in mistakes("-cd", str(own), "experiment=typed", "optimizer.lr=2")[0]
    )


def test_a_file_may_ask_for_multirun(project):
    write(project, {"main.yaml": (project / "main.yaml").read_text() + "hydra:\n  mode: MULTIRUN\n"})
    line = split(["size=1,2"], "main")
    overrides.compose(line, project)
    assert line.multirun


def test_groups_and_options_of_a_further_folder_are_known(project, tmp_path):
    files = {"part/mine.yaml": "own: 2\n", "soil/clay.yaml": "wet: true\n", "mine.yaml": "x: 1\n"}
    folder = write(tmp_path / "a b", files)
    for where in (["-cd", str(folder)], [f"--config-dir={folder}"]):
        tree = check(*where, "part=mine", "part.own=3", "+soil=clay", "soil.wet=false", config="main", conf=project)
        assert (tree.part.own, tree.soil.wet) == (3, False)
        assert "did you mean mine?" in mistakes(*where, "part=mime", config="main", conf=project)[0]
    assert check("-cd", str(folder), "-cn", "mine", "+part=leaf", config="main", conf=project).part.width == 2


@pytest.mark.parametrize(
    "text", ["a: [1\n", "a: 1\na: 2\n", "defaults:\n  - nosuch\n", "defaults: nosuch\n", "a: ${b\n"]
)
def test_a_broken_file_is_a_sentence(project, text):
    write(project, {"part/bad.yaml": text})
    (line,) = mistakes("part=bad", config="main", conf=project)
    assert line.startswith("The config main cannot be composed: ")


def test_an_old_run_is_checked_against_its_own_tree():
    stored = OmegaConf.create({"model": {"_target_": "lab.models.old.Old", "width": 3}, "seed": 1, "own": "${seed}"})
    before = stored.copy()
    tree = check("model.width=4", "seed=2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", stored=stored)
    assert (tree.model.width, tree.own) == (4, 2) and stored == before
    lines = mistakes("model.widht=4", "seed=x", "data.batch_size=3", stored=stored)
    assert len(lines) == 3 and "did you mean model.width?" in lines[0]


def test_no_torch_is_imported():
    argv = ["-m", "model=cnn,mlp", "+model._convert_=all", "+data.fold=0"]
    code = (
        "import sys; from pathlib import Path\n"
        "from leyden.launch import overrides; from leyden.launch.line import split\n"
        f"overrides.compose(split({argv}, 'train'), Path(sys.argv[1]))\n"
        "assert not {'torch', 'lightning', 'numpy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(CONF)], check=True, cwd=CONF.parent / "src")


@pytest.mark.parametrize("group", ["local", "experiment", "debug"])
def test_a_recipe_without_its_package_line_is_named(tmp_path, group, monkeypatch):
    monkeypatch.delenv("LEYDEN_LOCAL")
    shutil.copytree(CONF, tmp_path / "conf")
    (tmp_path / "conf" / group).mkdir(exist_ok=True)
    (tmp_path / "conf" / group / "default.yaml").write_text("trainer: {max_epochs: 2}\n")
    line = split([] if group == "local" else [f"{group}=default"], "train")
    with pytest.raises(UserError, match="@package _global_"):
        overrides.compose(line, tmp_path / "conf")


def test_a_run_is_called_by_its_directory_and_a_job_by_its_sweep_too():
    assert configs.label("/logs/train/exp1") == "exp1" and configs.label("/logs/sweep/now/3") == "now-3"
    assert configs.label(None) is None
