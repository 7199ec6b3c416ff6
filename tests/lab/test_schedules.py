"""Learning-rate factors: where they start, peak and end, and that they depend on nothing but their arguments."""

import math
from functools import partial
from itertools import pairwise

import pytest
import torch

from lab.schedules import constant, cosine, onecycle, step

TOTALS = [1, 2, 3, 7, 50, 1000]
WARMUPS = [0, 1, 5, 30, 2000]
SCHEDULES = [constant, cosine, onecycle, step]
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES)
each_total = pytest.mark.parametrize("total", TOTALS)


def curve(schedule, total, **options):
    return [schedule(now, total, **options) for now in range(total + 1)]


@each_schedule
@each_total
@pytest.mark.parametrize("warmup_steps", WARMUPS)
def test_rises_then_falls_within_bounds(schedule, total, warmup_steps):
    factors = curve(schedule, total, warmup_steps=warmup_steps)
    assert all(0 < factor <= 1 for factor in factors[:-1]) and 0 <= factors[-1] <= 1
    top = min(warmup_steps, total)
    slack = 1e-12
    if schedule is not step or warmup_steps < total / 2:  # a milestone inside the warm-up falls first
        assert all(a < b + slack for a, b in pairwise(factors[: top + 1]))
    assert all(a >= b - slack for a, b in pairwise(factors[top:]))


@each_schedule
@pytest.mark.parametrize("warmup_steps", [0, 5, 30])
def test_peak_after_the_warmup(schedule, warmup_steps):
    assert schedule(warmup_steps, 100, warmup_steps=warmup_steps) == pytest.approx(1)


@pytest.mark.parametrize("schedule", [constant, cosine, step])
def test_linear_warmup(schedule):
    factors = [schedule(now, 1000, warmup_steps=9) for now in range(10)]
    assert factors == pytest.approx([(now + 1) / 10 for now in range(10)])


@each_schedule
@each_total
@pytest.mark.parametrize("warmup_steps", WARMUPS)
def test_stays_after_the_end(schedule, total, warmup_steps):
    if schedule is not constant:
        factors = {schedule(now, total, warmup_steps=warmup_steps) for now in (total, total + 1, total + 5000)}
        assert len(factors) == 1


@pytest.mark.parametrize("schedule", [cosine, onecycle])
@pytest.mark.parametrize("final", [0.0, 1e-4, 0.3, 1.0])
@each_total
def test_final(schedule, final, total):
    assert schedule(total, total, final=final) == pytest.approx(final, abs=1e-12)
    if total >= 50:
        assert schedule(total - 1, total, final=final) == pytest.approx(final, abs=3e-3)


@pytest.mark.parametrize("schedule", [constant, cosine, onecycle])
@pytest.mark.parametrize("warmup_steps", [0, 50, 300])
def test_no_jumps(schedule, warmup_steps):
    factors = curve(schedule, 1000, warmup_steps=warmup_steps)
    assert max(abs(a - b) for a, b in pairwise(factors)) < 0.04


def test_cosine_is_half_way_in_the_middle():
    assert cosine(60, 100, warmup_steps=20, final=0.2) == pytest.approx(0.6)


def test_onecycle_start_and_peak():
    assert onecycle(0, 100, start=0.1) == pytest.approx(0.1)
    assert max(range(101), key=lambda now: onecycle(now, 100)) == 30
    assert max(range(101), key=lambda now: onecycle(now, 100, warmup_steps=7)) == 7


def test_step_falls_at_its_milestones():
    factors = curve(partial(step, milestones=[0.2, 0.6], gamma=0.5), 10)
    assert factors == [1, 1, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25]
    assert set(curve(partial(step, milestones=[]), 10)) == {1}


def test_step_refuses_epochs():
    with pytest.raises(ValueError, match=r"must be shares of the run, 0 to 1; got `\[30, 60\]`"):
        step(0, 100, milestones=[30, 60])


@pytest.mark.parametrize("total", [None, math.inf])
def test_runs_without_end(total):
    assert [constant(now, total, warmup_steps=1) for now in (0, 1, 10**9)] == [0.5, 1, 1]
    for schedule in (cosine, onecycle, step):
        with pytest.raises(ValueError, match=f"`{schedule.__name__}` needs .*scheduler=constant"):
            schedule(0, total)


@each_schedule
def test_a_resumed_run_goes_on_as_if_never_stopped(schedule):
    def rates(first, last):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda now: schedule(now + first, 40))
        for _ in range(first, last):
            yield scheduler.get_last_lr()[0]
            optimizer.step()
            scheduler.step()

    assert list(rates(0, 40)) == [*rates(0, 17), *rates(17, 40)]


@each_schedule
def test_a_schedule_that_a_longer_run_stretches_says_so(schedule):
    assert getattr(schedule, "depends_on_total", False) == (curve(schedule, 40) != curve(schedule, 80)[:41])
