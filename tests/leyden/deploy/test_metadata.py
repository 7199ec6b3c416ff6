"""What the metadata says of a run, and what a file froze."""

import json

import pytest

from leyden import UserError
from leyden.deploy import metadata

FACTS = {"kind": "image", "shape": [3, 8, 9], "outputs": 2, "classes": ["a", "b"], "mean": [0.5] * 3, "std": [1.0] * 3}
RESIZE = {"_target_": "torchvision.transforms.v2.Resize", "size": [20, 30]}


@pytest.mark.parametrize(
    ("data", "size", "dims"),
    [
        ({}, None, ["batch", 3, 8, 9]),
        ({"size": 64}, [64, 64], ["batch", 3, "height", "width"]),
        ({"size": [20, 30]}, [20, 30], ["batch", 3, "height", "width"]),
        ({"size": None, "eval_transforms": [RESIZE]}, [20, 30], ["batch", 3, "height", "width"]),
        ({"eval_transforms": [RESIZE | {"size": 20}]}, None, ["batch", 3, "height", "width"]),
    ],
)
def test_pictures(data, size, dims):
    made = metadata.of_run(FACTS, data, "probs")
    assert made.size == size and made.inputs == {"image": dims} and made.outputs == {"probs": ["batch", 2]}
    assert metadata.Metadata(**json.loads(json.dumps(vars(made)))) == made


def test_tables_and_sequences():
    columns = [{"name": "a", "fill": 1.0}, {"name": "b", "categories": ["x", "y"]}]
    table = metadata.of_run(
        FACTS | {"kind": "table", "shape": [3], "columns": columns}, {"missing": ["?"], "target": "c"}, "probs"
    )
    assert table.inputs == {"row": ["batch", 2]} and table.missing == ["?"] and table.target == "c"
    sequence = metadata.of_run(FACTS | {"kind": "sequence", "shape": [None, 5]}, {}, "values")
    assert sequence.inputs == {"values": ["batch", "time", 5], "lengths": ["batch"]} and sequence.classes is None
    with pytest.raises(UserError, match="one of image, sequence, table; got `kind: None`"):
        metadata.of_run({"shape": [3]}, {}, "probs")


def test_a_frozen_dimension_is_named():
    asked = {"values": ["batch", "time", 3], "lengths": ["batch"]}
    assert not metadata.frozen(asked, [["s0", "s1", 3], ["s0"]]) and not metadata.frozen(asked, [])
    assert metadata.frozen(asked, [["s0", 12, 3], ["s0"]]) == ["time of values is frozen to 12"]
    assert metadata.frozen(asked, [["s0", "s1", "s2"], [7]]) == ["3 of values is s2", "batch of lengths is frozen to 7"]
    assert metadata.frozen(asked, [["s0"], ["s0"]]) == ["values has 1 dimensions, not 3"]
