import pytest
import torch

from leyden.tasks.preprocess import Encode, Standardize

COLUMNS = [
    {"name": "age", "fill": 40.0},
    {"name": "city", "categories": ["", "Bern", "Rome"]},
    {"name": "pay", "fill": 7.0},
]
NAN = torch.nan


@pytest.mark.parametrize("kind", ["image", "table", "sequence"])
def test_standardize_by_channel(kind):
    module = Standardize(kind, [1.0, 2.0], [2.0, 4.0])
    x = torch.randn(3, 2, 4, 4) if kind == "image" else torch.randn(3, 2) if kind == "table" else torch.randn(3, 5, 2)
    last = x.movedim(1, -1) if kind == "image" else x
    expected = (last - torch.tensor([1.0, 2.0])) / torch.tensor([2.0, 4.0])
    found = module((x, torch.tensor([5, 5, 5])))[0] if kind == "sequence" else module(x)
    assert torch.allclose(found.movedim(1, -1) if kind == "image" else found, expected)
    assert set(module.state_dict()) == {"mean", "std"}


def test_encode_fills_and_spreads_categories():
    x = torch.tensor([[30.0, 2.0, NAN], [NAN, 0.0, 5.0], [NAN, NAN, NAN], [1.0, 9.0, 1.0]])
    assert Encode(COLUMNS)(x).tolist() == [[30, 0, 0, 1, 7], [40, 1, 0, 0, 5], [40, 0, 0, 0, 7], [1, 0, 0, 0, 1]]


def test_encode_is_one_input_per_number_or_category():
    """Of any columns and rows: no NaN comes out, and at most one category of a column is set."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        sizes = torch.randint(0, 4, (5,), generator=generator).tolist()
        columns = [
            {"name": str(i), **({"categories": list("abc")[:n]} if n else {"fill": 1.0})} for i, n in enumerate(sizes)
        ]
        x = torch.randint(0, 4, (50, 5), generator=generator).float()
        x[torch.rand(50, 5, generator=generator) < 0.3] = NAN
        parts = Encode(columns)(x).split([max(n, 1) for n in sizes], dim=1)
        for n, part, column in zip(sizes, parts, x.T, strict=True):
            assert part.shape == (50, max(n, 1)) and not part.isnan().any()
            assert torch.equal(part.sum(1), (column < n).float() if n else column.nan_to_num(1.0))


def test_a_table_is_standardised_after_it_is_encoded():
    module = Standardize("table", [40.0, 0, 0, 0, 7], [10.0, 1, 1, 1, 2], COLUMNS)
    assert module(torch.tensor([[30.0, 1.0, NAN]])).tolist() == [[-1, 0, 1, 0, 0]]
    other = Standardize("table", [0.0] * 5, [1.0] * 5, [dict(column, fill=0.0) for column in COLUMNS])
    other.load_state_dict(module.state_dict())  # all that it knows is in the checkpoint
    x = torch.tensor([[NAN, NAN, NAN], [3.0, 2.0, 1.0]])
    assert torch.equal(other(x), module(x))


@pytest.mark.slow
def test_a_table_exports_to_onnx_with_any_batch(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    module = Standardize("table", [40.0, 0, 0, 0, 7], [10.0, 1, 1, 1, 2], COLUMNS).eval()
    example = torch.tensor([[30.0, 1.0, NAN], [NAN, NAN, 2.0]])
    shapes = {"x": {0: torch.export.Dim("batch")}}
    program = torch.onnx.export(
        module, (example,), dynamo=True, dynamic_shapes=shapes, input_names=["x"], verbose=False
    )
    program.save(tmp_path / "table.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "table.onnx", providers=["CPUExecutionProvider"])
    for x in (example, example.repeat(3, 1), example[:1]):
        assert torch.equal(torch.from_numpy(session.run(None, {"x": x.numpy()})[0]), module(x))
