"""The tagger of ddp.py with Lightning: zstate's LSTM is a module like any other.

    pip install lightning
    python examples/lightning_tagger.py

Lightning moves the model and runs the loops. With `devices=4` the same program runs on four GPUs.
"""

from __future__ import annotations

import argparse

import lightning
import torch
from ddp import Tagger, make_batch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

Batch = tuple[Tensor, Tensor, Tensor]  # words [T,N], lengths [N], classes [T,N]


class LitTagger(lightning.LightningModule):
    """Says for every word whether it appeared earlier in the sentence."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.tagger = Tagger(hidden)

    def training_step(self, batch: Batch, index: int) -> Tensor:
        words, lengths, classes = batch
        return cross_entropy(self.tagger(words, lengths).flatten(0, 1), classes.flatten())

    def validation_step(self, batch: Batch, index: int) -> None:
        words, lengths, classes = batch
        counts = classes >= 0
        right = self.tagger(words, lengths).argmax(2)[counts] == classes[counts]
        self.log("accuracy", right.float().mean(), batch_size=int(counts.sum()))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def batches(seed: int, count: int) -> DataLoader[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return DataLoader([make_batch(generator, 64) for _ in range(count)], batch_size=None)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batches", type=int, default=40, help="batches of 64 sentences per epoch")
    parser.add_argument("--hidden", type=int, default=64)
    options = parser.parse_args()

    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = LitTagger(options.hidden)
    unseen = batches(seed=1, count=4)
    (before,) = trainer.validate(model, unseen, verbose=False)
    trainer.fit(model, batches(seed=0, count=options.batches))
    (after,) = trainer.validate(model, unseen, verbose=False)
    print(f"accuracy {before['accuracy']:.3f} before, {after['accuracy']:.3f} after training")


if __name__ == "__main__":
    main()
