"""An IterableDataset without a length, which deals its samples to workers and ranks itself."""

from collections.abc import Iterator
from itertools import count, islice, takewhile

import torch
from lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Swings(IterableDataset):
    """Damped swings, each T x 1, whose next value is to be told; sample n is made from n alone."""

    def __init__(self, start: int, stop: int, rank: int, world: int):
        self.start, self.stop, self.rank, self.world = start, stop, rank, world

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        mine = islice(count(self.start), self.rank * workers + number, None, self.world * workers)
        for n in takewhile(lambda n: n < self.stop, mine):
            speed, phase = torch.rand(2, generator=torch.Generator().manual_seed(n))
            time = torch.arange(17)[:, None]
            swing = torch.exp(-time / 20) * torch.sin(time * (0.3 + speed) + 6 * phase)
            yield swing[:-1], swing[-1]


class SwingsData(LightningDataModule):
    def __init__(self, batch_size: int = 32, num_workers: int = 0):
        super().__init__()
        self.batch_size, self.num_workers = batch_size, num_workers

    def loader(self, start: int, stop: int) -> DataLoader:
        stream = Swings(start, stop, self.trainer.global_rank, self.trainer.world_size)
        return DataLoader(stream, self.batch_size, num_workers=self.num_workers)

    def train_dataloader(self) -> DataLoader:
        return self.loader(0, 256)

    def val_dataloader(self) -> DataLoader:
        return self.loader(1000, 1064)

    def test_dataloader(self) -> DataLoader:
        return self.loader(2000, 2064)


class Forecast(LightningModule):
    def __init__(self, width: int = 16, lr: float = 1e-2):
        super().__init__()
        self.rnn, self.head, self.lr = nn.GRU(1, width, batch_first=True), nn.Linear(width, 1), lr

    def forward(self, seen: Tensor) -> Tensor:
        return self.head(self.rnn(seen)[0][:, -1])

    @property
    def example_input(self) -> Tensor:
        return torch.linspace(-1, 1, 48).view(3, 16, 1)

    def loss(self, batch: list[Tensor]) -> Tensor:
        seen, following = batch
        return F.mse_loss(self(seen), following)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch)

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("val/mse", self.loss(batch), sync_dist=True)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        self.log("test/mse", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.Adam(self.parameters(), self.lr)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)}
