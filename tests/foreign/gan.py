"""Two networks with an optimizer each, by manual optimisation (GAN: arXiv:1406.2661)."""

import torch
from lightning import LightningDataModule, LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


def ring(count: int, seed: int) -> Tensor:
    """Noisy points on the unit circle, count x 2."""
    draw = torch.Generator().manual_seed(seed)
    angle = 2 * torch.pi * torch.rand(count, generator=draw)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(count, 2, generator=draw)


def energy(x: Tensor, y: Tensor) -> Tensor:
    """The energy distance of two samples of points; 0 for two of one distribution (Szekely and Rizzo 2013)."""
    return 2 * torch.cdist(x, y).mean() - torch.cdist(x, x).mean() - torch.cdist(y, y).mean()


class Ring(LightningDataModule):
    def __init__(self, batch_size: int = 64):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader:
        return DataLoader(ring(512, 0), self.batch_size, shuffle=True, drop_last=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(ring(128, 1), self.batch_size)

    def test_dataloader(self) -> DataLoader:
        return DataLoader(ring(128, 2), self.batch_size)


class GAN(LightningModule):
    def __init__(self, latent: int = 4, width: int = 32, lr: float = 1e-3):
        super().__init__()
        self.automatic_optimization = False
        self.latent, self.lr = latent, lr
        self.generator = nn.Sequential(nn.Linear(latent, width), nn.ReLU(), nn.Linear(width, 2))
        self.critic = nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, 1))

    def fake(self, count: int) -> Tensor:
        return self.generator(torch.randn(count, self.latent, device=self.device))

    def training_step(self, real: Tensor, batch_idx: int) -> None:
        for_generator, for_critic = self.optimizers()

        fake = self.fake(len(real)).detach()
        critic_loss = F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(fake)).mean()
        for_critic.zero_grad()
        self.manual_backward(critic_loss)
        for_critic.step()

        generator_loss = F.softplus(-self.critic(self.fake(len(real)))).mean()
        for_generator.zero_grad()
        self.manual_backward(generator_loss)
        for_generator.step()
        self.log_dict({"train/critic_loss": critic_loss, "train/generator_loss": generator_loss})

    def validation_step(self, real: Tensor, batch_idx: int) -> None:
        self.log("val/energy", energy(real, self.fake(len(real))), sync_dist=True)

    def test_step(self, real: Tensor, batch_idx: int) -> None:
        self.log("test/energy", energy(real, self.fake(len(real))), sync_dist=True)

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(part.parameters(), self.lr, (0.5, 0.9)) for part in (self.generator, self.critic)]
