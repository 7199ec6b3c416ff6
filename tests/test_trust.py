import pytest
from omegaconf import OmegaConf

from leyden import UserError, trust

HOSTILE = [
    "os.system", "posix.system", "subprocess.run", "subprocess.Popen", "builtins.eval", "builtins.exec",
    "builtins.open", "torch.load", "torch.hub.load", "torch.serialization.load", "torch.jit.load", "numpy.load",
    "joblib.load", "pandas.read_pickle", "pickle.loads", "torch.utils.cpp_extension.load_inline",
    "torch.utils.cpp_extension.load", "lightning.fabric.utilities.cloud_io._load",
    "lightning.LightningModule.load_from_checkpoint", "leyden.tasks.classification.Classification.load_from_checkpoint",
    "leyden.runs.os.system", "leyden.build.instantiate", "leyden.record.subprocess.run", "leyden.trust.get_object",
    "hydra.utils.get_method", "hydra.utils.instantiate", "importlib.import_module", "shutil.rmtree", "torch.os.system",
    "lightning.pytorch.trainer.trainer.os.remove", "torchvision.datasets.utils.download_url", "leyden.checkpoints.read",
    "leyden.runs.Path", "torch.nn.Module.load_state_dict", "torchvision.datasets.MNIST",
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
        trust.check_targets(OmegaConf.create(trees[where] | {"trusted": []}))


def test_what_a_run_is_made_of_passes(configure):
    for keys in (["data=fake"], ["model=resnet", "callbacks=[early_stopping]", "profiler=simple", "scheduler=plateau"]):
        cfg = configure(*keys)
        cfg.facts = {"shape": [1, 8, 8], "outputs": 10, "kind": "image", "mean": [0.0], "std": [1.0]}
        trust.check_targets(cfg)


def test_a_trusted_prefix_allows_classes_only(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("import os\nfrom torch import nn\nclass Net(nn.Module): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    tree = {"model": {"_target_": "mine.Net"}}
    with pytest.raises(UserError, match=r"trusted=\[mine\]"):
        trust.check_targets(OmegaConf.create(tree | {"trusted": []}))
    trust.check_targets(OmegaConf.create(tree | {"trusted": ["mine"]}))
    with pytest.raises(UserError):
        trust.check_targets(OmegaConf.create({"model": {"_target_": "mine.os.system"}, "trusted": ["mine"]}))
