"""A Hugging Face model around zstate's LSTM: Trainer, save_pretrained, from_pretrained.

    pip install transformers accelerate
    python examples/huggingface_classifier.py

The task: is a line of Python's standard library code or a comment? The model reads it letter by
letter, and nothing is downloaded. Lines have different lengths: the attention mask gives them,
and the LSTM takes them as `lengths`, without packing and without computing the padding.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

import zstate.torch as zt

LETTERS = 128  # ASCII; 0 is the padding
Line = dict[str, Any]  # input_ids: a list of numbers; labels: 1 for a comment


class LineConfig(PretrainedConfig):
    model_type = "zstate-lines"

    def __init__(self, embedding: int = 16, hidden: int = 32, **more: Any) -> None:
        self.embedding = embedding
        self.hidden = hidden
        super().__init__(**more)


class LineClassifier(PreTrainedModel):
    """Letters [N,T] to the two classes of each line [N,2]."""

    config_class = LineConfig

    def __init__(self, config: LineConfig) -> None:
        super().__init__(config)
        self.embedding = torch.nn.Embedding(LETTERS, config.embedding)
        self.encoder = zt.LSTM(
            config.embedding, config.hidden, bidirectional=True, batch_first=True
        )
        self.head = torch.nn.Linear(2 * config.hidden, 2)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None, **more: Any
    ) -> SequenceClassifierOutput:
        lengths = attention_mask.sum(1)
        _, (h_n, _) = self.encoder(self.embedding(input_ids), lengths=lengths)
        logits = self.head(torch.cat([h_n[0], h_n[1]], 1))  # each direction's state at its own end
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def read_lines(count: int) -> list[Line]:
    """As many comments as lines of code, from the standard library of this Python."""
    kinds: tuple[list[str], list[str]] = ([], [])
    for path in sorted(Path(random.__file__).parent.glob("*.py")):
        for line in path.read_text(errors="ignore").splitlines():
            text = line.strip()
            if 12 <= len(text.lstrip("# ")) <= 72 and text.isascii():
                kinds[text.startswith("#")].append(text.lstrip("# "))
    chosen = random.Random(0)
    return [
        {"input_ids": [ord(letter) for letter in text], "labels": label}
        for label, texts in enumerate(kinds)
        for text in chosen.sample(texts, count // 2)
    ]


def collate(lines: list[Line]) -> dict[str, Tensor]:
    """Lines of different lengths as one padded batch."""
    longest = max(len(line["input_ids"]) for line in lines)
    padded = [line["input_ids"] + [0] * (longest - len(line["input_ids"])) for line in lines]
    ids = torch.tensor(padded)
    return {
        "input_ids": ids,
        "attention_mask": (ids != 0).long(),
        "labels": torch.tensor([line["labels"] for line in lines]),
    }


def accuracy(model: LineClassifier, lines: list[Line]) -> float:
    batch = {name: tensor.to(model.device) for name, tensor in collate(lines).items()}
    with torch.inference_mode():
        right = model.eval()(**batch).logits.argmax(1) == batch["labels"]
    return right.float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--epochs", type=float, default=3)
    options = parser.parse_args()

    torch.manual_seed(0)
    lines = read_lines(options.lines)
    random.Random(1).shuffle(lines)
    cut = len(lines) * 4 // 5
    model = LineClassifier(LineConfig())
    before = accuracy(model, lines[cut:])
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=32,
            learning_rate=1e-2,
            disable_tqdm=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
        )
        Trainer(model, arguments, data_collator=collate, train_dataset=lines[:cut]).train()  # type: ignore[arg-type]
        after = accuracy(model, lines[cut:])
        model.save_pretrained(folder)
        loaded = LineClassifier.from_pretrained(folder)
        assert accuracy(loaded, lines[cut:]) == after
    print(f"accuracy {before:.3f} before, {after:.3f} after training; saved and loaded")


if __name__ == "__main__":
    main()
