import itertools
import logging

import pytest
import torch
from torch._dynamo import config

from leyden.resume import compiled
from leyden.run.run import Run


def graphs(sizes, **options):
    """How many graphs are compiled for tensors of these sizes, one after the other."""
    made = []

    def backend(graph, inputs):
        made.append(graph)
        return graph.forward

    function = torch.compile(lambda x: x.sin() + x.shape[0], backend=backend, **options)
    for size in sizes:
        function(torch.zeros(size, 2))
    return len(made)


def test_sizes_are_static_or_dynamic_as_the_call_says_and_not_by_what_was_seen():
    with compiled.by_the_run_alone():
        assert graphs([3, 4, 5, 4, 3]) == 3  # by itself torch makes the second one dynamic
    with compiled.by_the_run_alone():
        assert graphs([3, 4, 5, 4, 3], dynamic=True) == 1
        assert not compiled.limits
    assert config.automatic_dynamic_shapes


def test_two_sizes_that_are_equal_at_first_stay_two():
    with compiled.by_the_run_alone():
        assert graphs([2, 3], dynamic=True) == 1


@pytest.mark.slow
def test_the_limit_of_recompilations_is_noted_for_one_job():
    with compiled.by_the_run_alone():
        graphs(range(2, 3 + config.recompile_limit))
        assert len(compiled.limits) == 1 and "test_compiled.py" in compiled.limits[0]
    with compiled.by_the_run_alone():
        assert not compiled.limits and graphs(range(2, 2 + config.recompile_limit)) == config.recompile_limit
        assert not compiled.limits
    assert compiled.note_limit not in logging.getLogger("torch._dynamo.convert_frame").filters


def test_no_stopwatch_chooses_kernels(configure):
    from leyden.run import build, process

    before = torch._inductor.config.deterministic
    with process.restored():
        build.trainer(configure(), [])
        assert torch._inductor.config.deterministic
    assert torch._inductor.config.deterministic == before


@pytest.mark.slow
def test_a_run_that_meets_the_limit_is_not_exact(train, monkeypatch):
    from lab.models.mlp import MLP

    record = Run(train("trainer.max_epochs=1")).record
    assert record["exact"] and record["not_exact"] is None

    forward, sizes = MLP.forward, itertools.count(2)
    compiled_part = torch.compile(lambda x: x.sum(), backend="eager")  # as a module of the user's own may do it
    monkeypatch.setattr(MLP, "forward", lambda self, x: forward(self, x) + compiled_part(torch.zeros(next(sizes))))
    run = train(folder="many")
    record = Run(run).record
    assert not record["exact"] and "limit of recompilations" in record["not_exact"]
    assert (run / "train.log").read_text().count("This run is not exact") == 1
