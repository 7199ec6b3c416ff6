"""One LightningDataModule, and a file for each data set."""
