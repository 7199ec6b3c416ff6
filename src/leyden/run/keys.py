"""The role of each config key: what a resume may change, and what tells runs apart."""

import re

# What a longer run has more of.
GROWTH = ("trainer.max_epochs", "trainer.max_steps", "trainer.max_time")
# Where a run computes: elsewhere it gives other bits.
PLACE = ("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy", "threads")
# Where its data lies, which has a fingerprint.
PATHS = ("data.root", "data.path")
# What changes no number.
HARMLESS = (
    "timeout", "data.num_workers", "data.pin_memory", "trainer.log_every_n_steps", "trainer.enable_checkpointing",
    "trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.num_sanity_val_steps",
    "checkpoint.every_n_steps",
)  # fmt: skip
# What only says which run it is, where it is kept, how it was started.
LABEL = (
    "name", "tags", "note", "run_dir", "log_dir", "data_dir", "resume", "rerun", "sweep", "retry_failed",
    "max_failures", "stop_on_failure", "trusted", "own", "exact", "facts", "objective", "logger", "profiler", "test",
)  # fmt: skip
ROLES = {"growth": GROWTH, "place": PLACE, "path": PATHS, "harmless": HARMLESS, "label": LABEL}
ROLE_OF = {key: name for name, keys in ROLES.items() for key in keys}
RESUMABLE = ("growth", "path", "harmless", "label")  # may be changed while a run goes on

LOSSES = {"loss", "error"}  # words that outweigh others: dice_loss is a loss
SMALL = LOSSES | {  # words of metrics of which less is better
    "mse", "mae", "rmse", "msle", "mape", "nll", "bce", "kl", "perplexity", "huber", "fid", "wer", "cer", "ece", "brier"
}  # fmt: skip
LARGE = {  # and more
    "accuracy", "acc", "auc", "auroc", "f1", "r2", "precision", "recall", "sensitivity", "specificity",
    "iou", "miou", "jaccard", "dice", "psnr", "ssim", "bleu", "rouge", "kappa", "mcc", "pearson", "spearman",
}  # fmt: skip
UNSURE = {"gap", "drop", "diff", "delta", "decrease", "neg", "negative", "inverse", "std", "var", "ratio"}  # of either


def role(key: str) -> str:
    """The role of a dotted key: that of its longest beginning in the table, else identity: it changes numbers."""
    while key not in ROLE_OF and "." in key:
        key = key.rpartition(".")[0]
    return ROLE_OF.get(key, "identity")


def direction(metric: str) -> str | None:
    """`min` or `max`: where a metric of this name is better; None: it does not say."""
    name = re.sub(r"/dataloader_idx_\d+$", "", str(metric)).rpartition("/")[2]
    words = re.findall(r"[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])\d*", name)
    known = {name for word in words for name in (word.lower(), word.lower().rstrip("0123456789"))}  # acc5 is an acc
    small, large = not known.isdisjoint(SMALL), not known.isdisjoint(LARGE) and known.isdisjoint(LOSSES)
    if UNSURE & known or small == large:
        return None
    return "min" if small else "max"
