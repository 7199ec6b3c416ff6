import pytest
from omegaconf import OmegaConf

from leyden import UserError, build, runs

HOSTILE = [
    "os.system", "posix.system", "subprocess.run", "subprocess.Popen", "builtins.eval", "builtins.exec",
    "builtins.open", "torch.load", "torch.hub.load", "torch.serialization.load", "torch.jit.load", "numpy.load",
    "joblib.load", "pandas.read_pickle", "pickle.loads", "torch.utils.cpp_extension.load_inline",
    "torch.utils.cpp_extension.load", "lightning.fabric.utilities.cloud_io._load",
    "lightning.LightningModule.load_from_checkpoint", "leyden.tasks.classification.Classification.load_from_checkpoint",
    "leyden.runs.os.system", "leyden.build.instantiate", "leyden.record.subprocess.run", "leyden.build.get_object",
    "hydra.utils.get_method", "hydra.utils.instantiate", "importlib.import_module", "shutil.rmtree", "torch.os.system",
    "lightning.pytorch.trainer.trainer.os.remove", "torchvision.datasets.utils.download_url", "leyden.checkpoints.read",
    "leyden.runs.Path", "torch.nn.Module.load_state_dict",
]  # fmt: skip


@pytest.mark.parametrize("target", HOSTILE)
@pytest.mark.parametrize("where", ["model", "callbacks", "args"])
def test_nothing_foreign_is_built_from_a_stored_config(target, where):
    node = {"_target_": target}
    trees = {
        "model": {"task": {"_target_": "leyden.tasks.classification.Classification", "model": node}},
        "callbacks": {"callbacks": {"x": {"list": [{"deep": [node]}]}}},
        "args": {"model": {"_target_": "torch.nn.Sequential", "_args_": [node]}},
    }
    with pytest.raises(UserError, match="trusted"):
        build.check_targets(OmegaConf.create(trees[where] | {"trusted": []}))


def test_what_a_run_is_made_of_passes(configure):
    for keys in (["data=fake"], ["model=resnet", "callbacks=[early_stopping]", "profiler=simple", "scheduler=plateau"]):
        cfg = configure(*keys)
        cfg.facts = {"shape": [1, 8, 8], "outputs": 10, "kind": "image", "mean": [0.0], "std": [1.0]}
        build.check_targets(cfg)


def test_a_trusted_prefix_allows_classes_only(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("import os\nfrom torch import nn\nclass Net(nn.Module): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    tree = {"model": {"_target_": "mine.Net"}}
    with pytest.raises(UserError, match=r"trusted=\[mine\]"):
        build.check_targets(OmegaConf.create(tree | {"trusted": []}))
    build.check_targets(OmegaConf.create(tree | {"trusted": ["mine"]}))
    with pytest.raises(UserError):
        build.check_targets(OmegaConf.create({"model": {"_target_": "mine.os.system"}, "trusted": ["mine"]}))


def test_facts_that_contradict_the_data(train):
    with pytest.raises(UserError, match=r"facts.outputs is 7, but the data says 10"):
        train("facts={outputs:7}")


NORMALIZE = "data.{}_transforms=[{{_target_:torchvision.transforms.v2.Normalize,mean:[0.5],std:[0.5]}}]"


def test_normalising_twice_is_refused(train):
    twice = [NORMALIZE.format(split) for split in ("train", "eval")]
    with pytest.raises(UserError, match=r"normalise.*torch.nn.Identity"):
        train(*twice)
    train(*twice, "task.preprocess._target_=torch.nn.Identity", "data.num_workers=0", folder="once")


def test_a_key_that_no_constructor_takes(train):
    with pytest.raises(UserError, match="nonsense"):
        train("+optimizer.nonsense=1")


def test_half_precision_on_a_cpu_is_said_and_stored(train):
    run = train("trainer.precision=16-mixed", "trainer.max_epochs=1")
    assert runs.read_json(run / "run.json")["precision"] == "bf16-mixed"
    assert (run / "train.log").read_text().count("running in bf16-mixed") == 1


def test_a_refusal_of_lightning_is_a_sentence(train):
    with pytest.raises(UserError, match="trainer cannot be built"):
        train("trainer.gradient_clip_algorithm=nonsense", "trainer.gradient_clip_val=1")


@pytest.mark.parametrize(("key", "value"), [("seed", 0), ("seed", 7)])
def test_one_seed_one_set_of_weights(train, key, value):
    first, again, other = (
        runs.read_json(train(f"seed={seed}", folder=str(i)) / "metrics.json")["weights_sha256"]
        for i, seed in enumerate((value, value, value + 1))
    )
    assert first == again != other
