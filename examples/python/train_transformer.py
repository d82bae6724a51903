"""Trains a small transformer twice from the same start: once with the plain head (logits, then
cross entropy), once with weft as its head, which stores no logits. Prints both losses and fails
where they part.

    python train_transformer.py [--steps 300] [--device cpu|cuda]

The text is this file's folder and Python's standard library, byte by byte, hashed in pairs into
2048 ids, so that the head is the large part of the model. On the CPU the parameters are f32; on a
GPU they are f32 and the products bf16, by autocast, for both heads.

What the two heads round differently is about 1e-6 of the loss at first, and training amplifies it
from step to step, as it amplifies the order of sums in any other layer. So the first 50 losses must
agree to 1e-4 and all to 0.02 (on a GPU, where both heads round to bf16, to 0.02 and 0.1)."""

import argparse
import pathlib
import sys

import torch
import torch.nn.functional as F
import weft

VOCAB, WIDTH, LENGTH, BATCH, LAYERS, HEADS = 2048, 64, 32, 8, 2, 4


def text_ids(count=200_000):
    """Pairs of bytes of a text that every machine has, as ids below VOCAB."""
    folder = pathlib.Path(pathlib.__file__).parent.parent
    files = [*sorted(pathlib.Path(__file__).parent.glob("*.py")), *sorted(folder.glob("*.py"))]
    data = b"".join(file.read_bytes() for file in files)[: 2 * count]
    pairs = (
        torch.frombuffer(bytearray(data[: len(data) // 2 * 2]), dtype=torch.uint8)
        .view(-1, 2)
        .long()
    )
    return (pairs[:, 0] * 251 + pairs[:, 1] * 7) % VOCAB


class Model(torch.nn.Module):
    """Embeddings and blocks; the head's weight is the embedding's, as usual."""

    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCAB, WIDTH)
        self.places = torch.nn.Parameter(torch.randn(LENGTH, WIDTH) / 10)
        block = torch.nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = torch.nn.TransformerEncoder(block, LAYERS, enable_nested_tensor=False)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(LENGTH))
        torch.nn.init.normal_(self.tokens.weight, std=0.05)

    def forward(self, ids):
        hidden = self.blocks(self.tokens(ids) + self.places, mask=self.mask, is_causal=True)
        return self.norm(hidden)


def plain_head(hidden, weight, target):
    return F.cross_entropy(F.linear(hidden, weight).flatten(0, 1).float(), target.flatten())


def weft_head(hidden, weight, target):
    return weft.linear_cross_entropy(hidden, weight, target, reduction="mean")


def train(head, ids, steps, device):
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for step in range(steps):
        starts = torch.randint(0, len(ids) - LENGTH - 1, (BATCH,), generator=generator)
        windows = torch.stack([ids[s : s + LENGTH + 1] for s in starts]).to(device)
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * min(1.0, (step + 1) / 30)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = head(model(windows[:, :-1]), model.tokens.weight, windows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    early, late = (0.02, 0.1) if options.device == "cuda" else (1e-4, 0.02)
    ids = text_ids()
    plain, ours = (
        train(head, ids, options.steps, options.device) for head in (plain_head, weft_head)
    )
    for step in sorted({*range(0, options.steps, 50), options.steps - 1}):
        print(f"step {step:4}: plain {plain[step]:.5f}, weft {ours[step]:.5f}")
    apart = (plain - ours).abs()
    first, worst = apart[:50].max().item(), apart.max().item()
    print(
        f"apart by {first:.1e} in the first 50 steps (allowed {early}), {worst:.1e} in all ({late})"
    )
    if not (first <= early and worst <= late):
        sys.exit("the losses part")
    if options.steps >= 300 and not plain[-20:].mean() < plain[0] - 1:
        sys.exit("nothing was learnt")


if __name__ == "__main__":
    main()
