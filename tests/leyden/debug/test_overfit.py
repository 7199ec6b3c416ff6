from lab.models.mlp import MLP

KEYS = ["debug=overfit", "optimizer.lr=1e-2", "trainer.check_val_every_n_epoch=100"]


def test_a_healthy_model_passes(train):
    log = (train(*KEYS, "trainer.max_epochs=60") / "train.log").read_text()
    assert "overfit: passed, the loss of one batch went from" in log and "in 60 steps" in log


def test_labels_that_change_do_not_pass(train, monkeypatch):
    from lab.tasks.classification import Classification

    step = Classification.step
    monkeypatch.setattr(
        Classification, "step", lambda self, batch: step(self, (batch[0], batch[1].roll(self.global_step)))
    )
    log = (train(*KEYS, "trainer.max_epochs=30") / "train.log").read_text()
    assert "overfit: NOT passed" in log and "causes: optimizer.lr is wrong" in log and "inputs and targets" in log


def test_a_layer_without_gradient_is_named(train, monkeypatch):
    forward = MLP.forward
    monkeypatch.setattr(MLP, "forward", lambda self, x: forward(self, x).detach() * 0 + self.head.bias)
    log = (train(*KEYS, "trainer.max_epochs=30") / "train.log").read_text()
    assert "causes: model.body.1.weight (of 5 parameters) has no gradient" in log


def test_a_layer_before_dead_units_is_named(train, plant):
    plant(lambda model: model.body[4].bias.data.fill_(-100))
    log = (train("debug=overfit", "trainer.max_epochs=50") / "train.log").read_text()  # validated after the last step
    assert "causes: model.body.1.weight (of 5 parameters) has no gradient" in log


def test_few_steps_are_said_first(train):
    assert "causes: 2 steps are few" in (train(*KEYS) / "train.log").read_text()
