import pytest

from leyden import UserError
from leyden.run import runs


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
