"""What may be built: attacks on a stored config, and what must stay possible."""

import csv
import itertools
import sys

import numpy as np
import pytest
from omegaconf import ListConfig, OmegaConf

from leyden import UserError
from leyden.run import build, configs, study, trust
from leyden.run.run import Run
from test_conf import OPTIONS

FACTS = {
    "kind": "image", "shape": [3, 8, 8], "outputs": 2, "classes": ["a", "b"], "counts": [1, 1], "mean": [0.0],
    "std": [1.0], "target_mean": [0.0], "target_std": [1.0],
}  # fmt: skip
HOSTILE = [
    "os.system", "posix.system", "subprocess.run", "subprocess.Popen", "builtins.eval", "builtins.exec",
    "builtins.open", "builtins.getattr", "torch.load", "torch.hub.load", "torch.serialization.load", "torch.jit.load",
    "torch.package.PackageImporter", "torch.export.load", "torch.tensor", "numpy.load", "joblib.load",
    "pandas.read_pickle", "pickle.loads", "torch.utils.cpp_extension.load_inline", "torch.utils.cpp_extension.load",
    "lightning.fabric.utilities.cloud_io._load", "lightning.LightningModule.load_from_checkpoint",
    "lightning.LightningDataModule.load_from_checkpoint",
    "lab.tasks.classification.Classification.load_from_checkpoint",
    "leyden.resume.checkpoints.load", "leyden.resume.checkpoints.read", "leyden.ops.kernels.load",
    "leyden.run.paths.find", "leyden.run.build.load_model", "leyden.load_model.__call__", "leyden.UserError",
    "leyden.run.run.os.system", "leyden.run.run.Path", "leyden.run.build.instantiate", "leyden.run.build.make",
    "leyden.run.record.subprocess.run", "leyden.run.record.LiveRun", "leyden.run.trust.get_object",
    "hydra.utils.get_method", "hydra.utils.instantiate", "hydra.utils.call", "functools.partial",
    "importlib.import_module", "shutil.rmtree", "torch.os.system", "lightning.pytorch.trainer.trainer.os.remove",
    "torchvision.datasets.utils.download_url", "torchvision.datasets.MNIST",
    "torchvision.datasets.folder.DatasetFolder", "torchvision.datasets.folder.default_loader",
    "torch.nn.Module.load_state_dict", "torch.fx.GraphModule", "torch.jit.ScriptModule",
    "torch.nn.modules.module.torch.jit.ScriptModule", "torch.distributed.run.main", "torch.utils.data.IterDataPipe",
    "torchvision.models.get_model", "torchvision.models._api.get_model_weights",
    "torch.nn.modules.linear.Module.__init__", "torch.nn.modules._functions.SyncBatchNorm", "optuna.load_study",
    "___", "",
]  # fmt: skip
OWN = """
import os
from dataclasses import dataclass
from functools import partial
from os import system
from subprocess import Popen
import lightning, torch
from torch import load, nn

@dataclass
class Settings:
    width: int = 8

class Net(lightning.LightningModule):
    def __init__(self, width=8):
        super().__init__()
        self.layer = nn.LazyLinear(width)
    @classmethod
    def from_pretrained(cls, name):
        return cls()
    @staticmethod
    def static(): pass
    def method(self): pass

class Child(Net): pass

def net(num_classes, settings):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, settings.width), nn.ReLU(), nn.Linear(settings.width, num_classes))

class _Hidden: pass
half, anonymous, instance = partial(net, 2), lambda: None, Settings()
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of a user's own."""
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)


def of_run(tree, **keys):
    return OmegaConf.create({"own": [], "trusted": [], "resume": "run"} | keys | {"model": tree})


def allowed(target, **keys):
    cfg = of_run({"_target_": target}, **keys)
    try:
        trust.checked(cfg, cfg.model)
    except UserError:
        return False
    return True


@pytest.mark.parametrize("target", HOSTILE)
def test_nothing_foreign_is_built_from_a_stored_config(target):
    bad = {"_target_": target, "x": 1}
    for tree in (
        bad,
        {"_target_": "torch.nn.Sequential", "_args_": [bad]},
        {"_target_": "torch.nn.Sequential", "_recursive_": False, "part": bad},
        {"_target_": "torch.nn.Identity", "list": [[{"deep": [bad]}]]},
        bad | {"_partial_": True},
        {"bad": bad},
    ):
        cfg = of_run(tree)
        with pytest.raises(UserError, match=r"trusted|must (name|be)"):
            trust.checked(cfg, cfg.model)


@pytest.mark.parametrize(
    "tree",
    [
        {"_target_": "${facts.classes.0}"},
        {"_target_": "${..facts.classes.1}"},
        {"_target_": "${oc.select:facts.classes.2}"},
        {"_target_": "torch.${facts.classes.3}"},
        {"_target_": "\\${facts.classes.0}"},
        {"_target_": "${oc.env:NOWHERE,torch.nn.Identity}"},
        {"x": "${oc.create:{_target_:torch.load}}"},
        {"x": ["${oc.create:{_target_:torch.nn.ReLU}}"]},
        {"x": "${oc.decode:'{_target_: torch.nn.ReLU}'}"},
        {"x": "${facts.node}"},
        {"_target_": "torch.nn.Identity", "_recursive_": False, "x": {"_target_": "${facts.classes.0}"}},
        {
            "_target_": "torch.nn.Identity",
            "_recursive_": False,
            "x": {"_target_": "torch.nn.ReLU", "y": "${facts.text}"},
        },
    ],
)
@pytest.mark.parametrize("resume", [None, "run"])
def test_a_target_is_written_as_it_is(tree, resume):
    classes = ["torch.load", "os.system", "torch.nn.Linear", "nn.Linear"]
    facts = {"classes": classes, "node": {"_target_": "torch.nn.Tanh"}, "text": "\\${oc.create:{_target_:os.system}}"}
    cfg = of_run(tree, facts=facts, resume=resume)
    with pytest.raises(UserError, match=r"_target_ must be the name itself|must hold no text"):
        trust.checked(cfg, cfg.model)


def test_what_a_node_points_to_is_checked_and_is_what_is_built():
    cfg = of_run("${other}", other={"_target_": "torch.nn.Linear", "in_features": "${facts.n}"}, facts={"n": 3})
    assert trust.checked(cfg, cfg.model) == {"_convert_": "all", "_target_": "torch.nn.Linear", "in_features": 3}
    node = {"_target_": "collections.OrderedDict", "x": "${facts.t}", "y": [{"z": "a ${facts.t}"}]}
    cfg = of_run(node, facts={"t": "\\${seed}"}, trusted=["collections"])
    for convert, kind in ({}, ListConfig), ({"_convert_": "none"}, ListConfig), ({"_convert_": "all"}, list):
        cfg.model = node | convert
        made = build.make(cfg, "model", cfg.model)
        assert (made["x"], made["y"][0]["z"]) == ("${seed}", "a ${seed}") and type(made["y"]) is kind
    cfg.model = node | {"_recursive_": False}
    with pytest.raises(UserError, match="no text"):
        build.make(cfg, "model", cfg.model)


def test_who_is_handed_nodes_of_the_config():
    """As Hydra hands them: own classes; those of the libraries, and children of classes of ours, get plain data."""
    node = {"a": [1], "b": {"c": [2]}}
    cfg = of_run({}, own=["lab", "foreign"])
    for target, convert in (("lab.models.mlp.MLP", "none"), ("foreign.partials.LitModule", "none"),
                            ("lab.data.fake.Fake", "all"), ("lab.tasks.classification.Classification", "all"),
                            ("torch.nn.Linear", "all"), ("lab.schedules.step", "none")):  # fmt: skip
        inner = {"_target_": target} | node
        for given in (inner, {"_target_": "torch.nn.Sequential", "x": [inner]}):
            found = trust.checked(cfg, given)
            assert found.get("x", [found])[0] == {"_convert_": convert} | inner
    unbuilt = {"_target_": "foreign.nodes.PLModule", "_recursive_": False, "net": {"_target_": "foreign.nodes.Net"}}
    assert trust.checked(cfg, unbuilt) == {"_convert_": "none"} | unbuilt


def sequences(root, *classes):
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for i in range(8):
            np.save(root / name / f"{i}.npy", np.full((3 + i % 2, 2), number + i / 9, np.float32))
    return root


@pytest.mark.parametrize("name", ["torch.load", "numpy.load", "os.system"])
def test_classes_named_like_functions_are_never_called(configure, tmp_path, name):
    """The facts that were stored named something harmless; those of the data do not."""
    root = sequences(tmp_path / "data", name, "z")
    cfg = configure("data=sequence_folder", f"data.root={root}", "model=rnn")
    cfg.model = {"_target_": "${facts.classes.0}"}
    cfg.rerun, cfg.facts = "run", {"classes": ["torch.nn.Identity", "z"]}
    with pytest.raises(UserError, match=r"_target_ must be the name itself"):
        build.parts(cfg)


def test_facts_name_no_target(configure):
    cfg = configure("data=fake")
    data = type("Data", (), {"facts": {"columns": [{"_target_": "torch.nn.Identity"}]}})()
    with pytest.raises(UserError, match="_target_"):
        build.facts(cfg, data)


@pytest.mark.slow
def test_text_of_the_data_is_text(tmp_path, script):
    """In the stored config, predictions, loggers and what goes on from the run."""
    names = ["${oc.env:HOME}", "a\\${seed}", "${oc.create:{_target_:os.system}}"]
    root = sequences(tmp_path / "data", *names)
    common = [f"log_dir='{tmp_path}'"]
    line = ["data=sequence_folder", f"data.root='{root}'", "model=rnn", "model.hidden=4", "name=a", "debug=fast"]
    status, _, wrong = script("train.py", *line, "logger=tensorboard", "data.test_fraction=0.3", *common)
    assert status == 0, wrong
    run = tmp_path / "train" / "a"
    stored = configs.stored(run)
    assert sorted(OmegaConf.to_container(stored.facts, resolve=True)["classes"]) == sorted(names)
    assert "\\${oc.env:HOME}" in (run / "config.yaml").read_text()
    for command in (
        ["predict.py", "split=val", f"output={tmp_path / 'o.csv'}"],
        ["eval.py"],
        ["export.py", "format=state_dict"],
    ):
        status, _, wrong = script(*command, "run=a", *common)
        assert status == 0, wrong
    with open(tmp_path / "o.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows and {row[key] for row in rows for key in ("target", "prediction")} <= set(names)
    assert script("train.py", "rerun=a", *common)[0] == 0


@pytest.mark.slow
def test_cells_and_columns_of_a_table_are_text(tmp_path, script):
    rows = "".join(f"{i},{'${oc.env:HOME}' if i % 2 else 'b'},{'${seed}' if i % 3 else 'x'}\n" for i in range(60))
    (tmp_path / "t.csv").write_text("${now:},${col},y\n" + rows)
    line = ["data=table", f"data.path='{tmp_path / 't.csv'}'", "data.target=y", "model=mlp", "debug=fast", "name=t"]
    status, _, wrong = script("train.py", *line, f"log_dir='{tmp_path}'")
    assert status == 0, wrong
    facts = OmegaConf.to_container(configs.stored(tmp_path / "train" / "t").facts, resolve=True)
    assert facts["classes"] == ["${seed}", "x"]
    assert [column["name"] for column in facts["columns"]] == ["${now:}", "${col}"]
    assert facts["columns"][1]["categories"] == ["${oc.env:HOME}", "b"]
    status, said, _ = script("predict.py", "run=t", f"input='{tmp_path / 't.csv'}'", f"log_dir='{tmp_path}'")
    assert status == 0 and ("${seed}" in said or " x" in said)


GOOD = ["Net", "Settings", "net", "_Hidden", "Net.from_pretrained", "Child.from_pretrained"]
BAD = [
    "system", "Popen", "load", "os.system", "Net.load_from_checkpoint", "Net.static", "Net.method", "half", "anonymous",
    "instance", "torch.load", "lightning.Trainer.fit", "nothing",
]  # fmt: skip


def test_what_a_package_of_the_user_defines_may_be_built(own):
    for keys in ({"trusted": ["mine"]}, {"own": ["mine"]}):
        assert [name for name in GOOD if not allowed(f"mine.{name}", **keys)] == []
        assert [name for name in BAD if allowed(f"mine.{name}", **keys)] == []
    assert not any(allowed(f"mine.{name}") for name in GOOD)  # nobody has said that it is one's own
    assert not allowed("mine.net", trusted=["min", "mine.nets"])
    assert not allowed("torch.load", trusted=["torch"]) and not allowed(
        "leyden.resume.checkpoints.read", own=["leyden"]
    )
    with pytest.raises(UserError, match=r"type 'trusted=\[mine\]'"):
        trust.check("mine.Net", [], False)


def test_what_is_not_trusted_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert not allowed("evil.Net") and not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_run_cannot_say_what_is_trusted_nor_what_hydra_builds(trained, logs, typed):
    run = trained("sly", "data=fake", "data.num_samples=24", "data.shape=[1,8,8]", "model=mlp", "debug=fast")
    tree = OmegaConf.load(run / "config.yaml")
    ran = logs / "ran"
    node = {"_target_": "pathlib.Path.touch", "_args_": [{"_target_": "pathlib.Path", "_args_": [str(ran)]}]}
    tree.update({"own": ["pathlib"], "trusted": ["pathlib"], "hydra": {"callbacks": {"x": node}}, "defaults": ["x"]})
    OmegaConf.save(tree, run / "config.yaml")
    for command in (["eval.py", f"run={run}"], ["train.py", f"rerun={run}"]):
        status, _, wrong = typed(*command)
        assert status == 0 and not ran.exists(), wrong
    tree.task.model = {"_target_": "pathlib.Path"}
    OmegaConf.save(tree, run / "config.yaml")
    Run(run).update(status="stopped")
    for command in (["eval.py", f"run={run}"], ["train.py", f"rerun={run}"], ["train.py", f"resume={run}"]):
        status, _, wrong = typed(*command)
        assert status == 2 and "trusted=[pathlib]" in wrong


def test_a_builder_of_torchvision_may_be_called():
    assert allowed("torchvision.models.resnet18") and allowed("torchvision.models.detection.ssd300_vgg16")
    assert allowed("torchvision.models.ResNet") and not allowed("torchvision.models.list_models")


def choices():
    """Each option once, several in a config."""
    groups = ["model", "data", "task/loss", "optimizer", "scheduler", "trainer", "callbacks", "logger", "profiler"]
    for options in itertools.zip_longest(*(OPTIONS[group] for group in groups)):
        pairs = [(group, option) for group, option in zip(groups, options, strict=True) if option]
        yield [
            f"{group}=[{option}]" if group in ("callbacks", "logger") else f"{group}={option}"
            for group, option in pairs
        ]
    yield from ([f"{group}={option}"] for group in ("task", "experiment", "debug") for option in OPTIONS[group])


@pytest.mark.parametrize("keys", choices(), ids=" ".join)
def test_each_option_may_be_built_again(configure, keys):
    cfg = configure(*keys)
    cfg.update({"resume": "run", "facts": FACTS})
    for name in ("data", "task", "trainer", "profiler", "callbacks", "logger"):
        if cfg.get(name) is not None:
            assert trust.checked(cfg, cfg[name])


def test_a_pruner_of_a_file_is_checked(tmp_path):
    pytest.importorskip("optuna")
    cfg = of_run({})
    good = {
        "_target_": "optuna.pruners.PatientPruner",
        "wrapped_pruner": {"_target_": "optuna.pruners.NopPruner"},
        "patience": 1,
    }
    assert study.build(trust.checked(cfg, good))
    for bad in ({"_target_": "os.system"}, {"x": {"_target_": "optuna.create_study"}}, {"_target_": "${oc.env:X,a}"}):
        with pytest.raises(UserError):
            trust.checked(cfg, bad)
    texts = {"_target_": "collections.OrderedDict", "x": "${oc.create:{_target_:os.system}}"}
    assert build.make(of_run({}, trusted=["collections"]), "pruner", texts)["x"] == texts["x"]


@pytest.mark.parametrize("target", ["torch.tensor", "builtins.list", "mine.half", "mine.Net.static"])
def test_what_could_not_be_built_again_is_said_before_the_first_step(own, train, tmp_path, target):
    with pytest.raises(UserError, match=rf"{target} must be a part of a run .*; write a function"):
        train(f"+model.extra={{_target_:{target}}}")
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.slow
def test_a_function_and_a_dataclass_have_a_way_back(own, tmp_path, script):
    common, trusted = f"log_dir='{tmp_path}'", "trusted=[mine]"
    line = ["data=fake", "data.num_samples=60", "data.shape=[1,8,8]", "data.batch_size=16", "trainer.max_epochs=1"]
    line += ["task.model={_target_:mine.net,num_classes:10,settings:{_target_:mine.Settings,width:4}}"]
    line += ["name=a", "threads=1"]

    def ran(name, *keys):
        status, _, wrong = script(name, *keys, common)
        assert status == 0, wrong

    ran("train.py", *line)
    for name, *keys in (["eval.py"], ["predict.py", "split=test"], ["export.py", "format=state_dict"]):
        assert "'trusted=[mine]'" in script(name, "run=a", *keys, common)[2]
        ran(name, "run=a", *keys, trusted)
    run = tmp_path / "train" / "a"
    before = Run(run).metrics["weights_sha256"]
    for keys in (["resume=a", trusted], line):
        Run(run).update(status="stopped")
        ran("train.py", *keys)
        assert Run(run).metrics["weights_sha256"] == before
    ran("train.py", "rerun=a", "name=b", trusted)
    assert Run(tmp_path / "train" / "b").metrics["weights_sha256"] == before
    for keys in (["resume=a"], ["rerun=a"]):
        Run(run).update(status="stopped")
        assert script("train.py", *keys, common)[0] == 2


def test_a_builder_has_a_way_back(trained, typed):
    shape = ["data=fake", "data.num_samples=24", "data.shape=[3,32,32]", "data.batch_size=8", "debug=fast"]
    run = trained("builder", *shape, "task.model={_target_:torchvision.models.squeezenet1_1,num_classes:10}")
    status, _, wrong = typed("eval.py", f"run={run}")
    assert status == 0, wrong
