"""An export from the command to the file: what a consumer gets, and what is refused."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits, load_sample_images
from torch import nn

from leyden.deploy import formats, graph
from leyden.run import paths
from leyden.run.run import Run
from leyden.tasks.supervised import Supervised

CNN = ["model=cnn", "model.channels=[8]", "data.batch_size=128"]
RNN = ["model=rnn", "model.hidden=8", "data=ink", "data.batch_size=256"]
MLP = ["model=mlp", "model.hidden=[8]", "data=diabetes", "task=regression"]


def parts(path: Path) -> tuple[dict, dict]:
    """The metadata and the declared inputs of an ONNX file."""
    session = onnxruntime.InferenceSession(path)
    words = {name: json.loads(word) for name, word in session.get_modelmeta().custom_metadata_map.items()}
    return words, {entry.name: (entry.type, entry.shape) for entry in session.get_inputs()}


def exported(logs: Path) -> dict:
    """What the newest export says of itself."""
    return Run(max((logs / "export").iterdir())).record["export"]


def test_onnx_of_pictures(trained, typed, tmp_path):
    run, file = trained("cnn", *CNN), tmp_path / "a model.onnx"
    status, said, _ = typed("export.py", f"run={run}", f"output={file}")
    assert status == 0 and "max abs difference" in said and "(limit 0.0001)" in said
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    words, inputs = parts(file)
    assert inputs == {"image": ("tensor(uint8)", ["batch", 1, 8, 8])}
    assert words["classes"] == [str(digit) for digit in range(10)] and words["outputs"] == {"probs": ["batch", 10]}
    assert words["run"] == "cnn" and words["versions"]["torch"]
    onnx.checker.check_model(str(file))
    x = np.random.default_rng(0).integers(0, 256, (5, 1, 8, 8), dtype=np.uint8)
    (probs,) = onnxruntime.InferenceSession(file).run(["probs"], {"image": x})
    assert probs.shape == (5, 10) and np.allclose(probs.sum(1), 1, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["pt2", "torchscript", "state_dict"])
def test_each_format_into_the_run(trained, typed, logs, form):
    run = trained("cnn", *CNN)
    status, said, _ = typed("export.py", f"run={run}", f"format={form}", "overwrite=true")
    file = run / "exports" / f"best{formats.ENDINGS[form]}"
    assert status == 0 and str(file) in said
    report = exported(logs)
    assert report["file"] == str(file) and report["format"] == form and report["max_abs_diff"] <= 1e-4
    assert report["batches"] == [[[size, 1, 8, 8]] for size in (3, 1, 2, 7)]
    assert not [path for path in file.parent.iterdir() if path.name.startswith(".")]
    assert typed("export.py", f"run={run}", f"format={form}")[0] == 2
    if form == "state_dict":
        weights = torch.load(file, weights_only=True)
        saved = torch.load(run / "checkpoints" / "best.ckpt", weights_only=True)["state_dict"]
        assert all(torch.equal(saved[f"model.{name}"], weights[name]) for name in weights)
        assert weights.metadata["classes"][3] == "3"
    else:
        words, x = {formats.EXTRA: ""}, torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
        if form == "pt2":
            call = torch.export.load(file, extra_files=words).module()
        else:
            call = torch.jit.load(file, _extra_files=words)
        assert json.loads(words[formats.EXTRA])["classes"][3] == "3" and call(x).shape == (3, 10)


@pytest.mark.slow
@pytest.mark.parametrize(("form", "cell"), [("onnx", "gru"), ("pt2", "lstm")])
def test_sequences_of_any_length(trained, typed, logs, form, cell):
    layers = ["model.layers=2", "model.pooling=last"] if cell == "lstm" else []
    run = trained(f"rnn-{cell}", *RNN, f"model.cell={cell}", *layers)
    status, said, errors = typed("export.py", f"run={run}", f"format={form}")
    assert status == 0 and "{'values': ['batch', 'time', 3], 'lengths': ['batch']} and gives {'probs'" in said, errors
    assert exported(logs)["max_abs_diff"] < 1e-5


@pytest.mark.slow
def test_values_in_the_unit_of_the_target(trained, typed, tmp_path):
    status, said, _ = typed("export.py", f"run={trained('mlp', *MLP)}", f"output={tmp_path}/a.onnx")
    assert status == 0 and "{'row': ['batch', 10]} and gives {'values': ['batch', 1]}" in said
    words, _ = parts(tmp_path / "a.onnx")
    assert words["outputs"] == {"values": ["batch", 1]} and words["classes"] is None


@pytest.mark.slow
def test_bfloat16_is_exported_in_float(trained, typed, tmp_path):
    run = trained("bf16", *CNN, "trainer.precision=bf16-true")
    status, said, _ = typed("export.py", f"run={run}", f"output={tmp_path}/a.onnx")
    assert status == 0 and "limit 0.0001" in said
    kinds = {tensor.data_type for tensor in onnx.load(tmp_path / "a.onnx").graph.initializer}
    assert onnx.TensorProto.BFLOAT16 not in kinds and onnx.TensorProto.FLOAT in kinds
    status, _, sentence = typed("predict.py", f"run={run}", "split=test", f"output={tmp_path}/o.csv")
    assert status == 0, sentence  # in bfloat16, as the run was tested


class Shifted(nn.Module):
    """A readout that is wrong by a little."""

    def forward(self, logits):
        return logits.softmax(1) + 2e-4


@pytest.mark.slow
def test_a_graph_that_differs_is_not_written(trained, typed, tmp_path, monkeypatch):
    run, right = trained("cnn", *CNN), graph.Graph.__init__

    def wrong(self, task: Supervised, size):
        right(self, task, size)
        self.readout = Shifted()

    monkeypatch.setattr(graph.Graph, "__init__", wrong)
    status, _, sentence = typed("export.py", f"run={run}", f"output={tmp_path}/new/a.onnx")
    assert status == 1 and "0.0002 away" in sentence and len(sentence.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "pt2"])
def test_a_frozen_dimension_is_not_written(trained, typed, tmp_path, monkeypatch, form):
    monkeypatch.setattr(formats, "dynamic_shapes", lambda metadata: None)  # as if the exporter had frozen all
    status, _, sentence = typed(
        "export.py", f"run={trained('cnn', *CNN)}", f"format={form}", f"output={tmp_path}/a.{form}"
    )
    assert status == 1 and len(sentence.splitlines()) == 1 and not list(tmp_path.iterdir())
    assert "does not run" in sentence


@pytest.mark.slow
def test_a_model_that_no_exporter_follows(trained, typed, tmp_path, monkeypatch):
    monkeypatch.setattr(graph, "Graph", Stubborn)
    for form in ("onnx", "pt2"):
        line = [f"run={trained('cnn', *CNN)}", f"format={form}", f"output={tmp_path}/a.{form}"]
        status, _, sentence = typed("export.py", *line)
        assert status == 2 and len(sentence.splitlines()) == 1 and "cannot follow this model" in sentence
    assert not list(tmp_path.iterdir())


class Stubborn(graph.Graph):
    def forward(self, image):
        return super().forward(image) if image.float().mean().item() > 0 else image


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["format=onx"], "`format` must be one of onnx, pt2, torchscript, state_dict; got `onx`"),
        (["trainer=ddp"], "type trainer.devices=1"),
        (["output={tmp}/a.bin"], r"`output` must be a file that ends in \.onnx"),
        (["output={tmp}/file/a.onnx"], "cannot be written"),
        (["model.channels=[4]", "output={tmp}/a.onnx"], "of another shape"),
        (["frmat=pt2"], "did you mean format"),
        (["precision=fp16"], "precision"),
    ],
)
def test_mistakes(trained, typed, tmp_path, keys, said):
    (tmp_path / "file").write_text("")
    keys = [key.format(tmp=tmp_path) for key in keys]
    status, _, sentence = typed("export.py", f"run={trained('cnn', *CNN)}", "overwrite=true", *keys)
    assert status == 2 and re.search(said, sentence) and len(sentence.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def snippet() -> str:
    text = (paths.PROJECT / "README.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "onnxruntime" in block]
    return blocks[0] if blocks else pytest.skip("a README of one's own")


def test_the_snippet_is_short():
    assert len(snippet().splitlines()) < 15 and "torch" not in snippet()


@pytest.mark.slow
def test_a_consumer_without_torch(trained, typed, tmp_path):
    """The README's snippet, in an environment that has onnxruntime, numpy and pillow, and nothing else."""
    run = trained("cnn", *CNN)
    assert typed("export.py", f"run={run}", f"output={tmp_path}/best.onnx")[0] == 0
    digit = (load_digits().images[0] * 255 / 16).round().astype("uint8")
    Image.fromarray(digit).save(tmp_path / "digit.png")
    python = tmp_path / "bare" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    try:
        subprocess.run([sys.executable, "-m", "venv", tmp_path / "bare"], check=True, capture_output=True)
        install = [python, "-m", "pip", "install", "-q", "onnxruntime", "numpy", "pillow"]
        subprocess.run(install, check=True, capture_output=True, timeout=300)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"no bare environment can be made here: {error}")
    assert subprocess.run([python, "-c", "import torch"], capture_output=True).returncode
    ran = subprocess.run([python, "-c", snippet()], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    status, _, _ = typed("predict.py", f"run={run}", f"input={tmp_path}/digit.png", f"output={tmp_path}/own.jsonl")
    own = json.loads((tmp_path / "own.jsonl").read_text())
    name, prob = ran.stdout.split()
    assert status == 0 and name == own["prediction"] and float(prob) == pytest.approx(own["probability"], abs=1e-4)


@pytest.mark.slow
def test_pictures_of_any_size(trained, typed, tmp_path):
    for name, scene in zip(("temple", "flower"), load_sample_images().images, strict=True):
        (tmp_path / "in" / name).mkdir(parents=True)
        for number in range(12):
            part = scene[10 * number : 10 * number + 60 + 9 * number, 20 * number : 20 * number + 90]
            Image.fromarray(part).save(tmp_path / "in" / name / f"{number}.{'jpg' if number % 2 else 'png'}")
    data = ["data=image_folder", f"data.root={tmp_path}/in", "data.size=[24,20]", f"data_dir={tmp_path}/data"]
    run, file = trained("photos", *data, "model=cnn", "model.channels=[8]", "data.num_workers=0"), tmp_path / "a.onnx"
    status, said, _ = typed("export.py", f"run={run}", f"output={file}")
    assert status == 0 and "{'image': ['batch', 3, 'height', 'width']}" in said and "limit 0.01" in said
    assert parts(file)[1] == {"image": ("tensor(uint8)", ["batch", 3, "height", "width"])}
    status, _, _ = typed("predict.py", f"run={run}", f"input={tmp_path}/in", f"output={tmp_path}/o.jsonl")
    found = [json.loads(row) for row in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert status == 0 and {row["prediction"] for row in found} <= {"temple", "flower"} and len(found) == 24
    session, words = onnxruntime.InferenceSession(file), parts(file)[0]
    for row in found:  # pictures of 12 sizes, as a consumer opens them
        raw = np.asarray(Image.open(tmp_path / "in" / row["name"])).transpose(2, 0, 1)[None]
        (probs,) = session.run(["probs"], {"image": np.ascontiguousarray(raw)})
        assert words["classes"][probs[0].argmax()] == row["prediction"]
        assert probs.max() == pytest.approx(row["probability"], abs=0.01)
