"""What the metadata says of a run, and the resize of exporters against that of the decoder."""

import json

import pytest
import torch
from omegaconf import OmegaConf

from leyden import UserError
from leyden.data.decode import decode
from leyden.deploy import graph

FACTS = {"kind": "image", "shape": [3, 8, 9], "outputs": 2, "classes": ["a", "b"]}


def metadata_of(facts, data, meaning):
    return graph.metadata_of(OmegaConf.create({"facts": facts, "data": data}), meaning)


@pytest.mark.parametrize(
    ("data", "size", "dims"),
    [
        ({}, None, ["batch", 3, 8, 9]),
        ({"size": 64}, [64, 64], ["batch", 3, "height", "width"]),
        ({"size": [20, 30]}, [20, 30], ["batch", 3, "height", "width"]),
        ({"size": None, "eval_transforms": [{}]}, None, ["batch", 3, "height", "width"]),
    ],
)
def test_pictures(data, size, dims):
    made = metadata_of(FACTS, data, "probs")
    assert made.size == size and made.inputs == {"image": dims} and made.outputs == {"probs": ["batch", 2]}
    assert graph.Metadata(**json.loads(json.dumps(vars(made)))) == made


def test_tables_and_sequences():
    columns = [{"name": "a", "fill": 1.0}, {"name": "b", "categories": ["x", "y"]}]
    table = metadata_of(FACTS | {"kind": "table", "shape": [3], "columns": columns}, {"missing": ["?"]}, "probs")
    assert table.inputs == {"row": ["batch", 2]} and table.data["missing"] == ["?"]
    sequence = metadata_of(FACTS | {"kind": "sequence", "shape": [None, 5]}, {}, "values")
    assert sequence.inputs == {"values": ["batch", "time", 5], "lengths": ["batch"]} and sequence.classes is None
    with pytest.raises(UserError, match=r"one of image, sequence, table; got `None`"):
        metadata_of({"shape": [3]}, {}, "probs")


def test_the_resize_is_that_of_the_decoder(tmp_path):
    from PIL import Image

    x = torch.randint(0, 256, (3, 50, 70), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    Image.fromarray(x.permute(1, 2, 0).numpy()).save(tmp_path / "a.png")
    there = decode(tmp_path / "a.png", (20, 90)).int()
    here = graph.resized(x[None], [20, 90])[0]
    assert here.dtype == torch.uint8 and (here.int() - there).abs().max() <= 1
