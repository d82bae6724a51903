"""Prompt log-probabilities as an inference server gives them: requests of different lengths are
packed into one batch of rows, each row is scored against the token that follows it, and every
request gets its own numbers back, with perplexity and mean entropy. No logits are stored, and what
a request gets does not depend on its batch.

    python prompt_logprobs.py [--requests 12] [--device cpu|cuda]
"""

import argparse
import sys
from typing import List, NamedTuple

import torch
import weft

VOCAB, WIDTH = 8000, 128


class Scores(NamedTuple):
    logprobs: torch.Tensor  # [length − 1]: of each token but the first
    perplexity: float
    mean_entropy: float


class Server:
    """A stand-in for a model: anything that turns ids into hidden states, and a head."""

    def __init__(self, device):
        self.dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.embedding = torch.randn(VOCAB, WIDTH, device=device)
        self.mix = torch.randn(WIDTH, WIDTH, device=device) / WIDTH**0.5
        self.head = (torch.randn(VOCAB, WIDTH, device=device) / WIDTH**0.5).to(self.dtype)

    def hidden(self, ids):
        history = (
            torch.cumsum(self.embedding[ids], 0)
            / torch.arange(1, len(ids) + 1, device=ids.device)[:, None].sqrt()
        )
        return torch.tanh(history @ self.mix).to(self.dtype)

    @torch.inference_mode()
    def score(self, requests: List[torch.Tensor]) -> List[Scores]:
        rows = torch.cat([self.hidden(ids)[:-1] for ids in requests])
        following = torch.cat([ids[1:] for ids in requests])
        nll, entropy = weft.linear_cross_entropy(rows, self.head, following, return_entropy=True)
        lengths = [len(ids) - 1 for ids in requests]
        return [
            Scores(-n, n.double().mean().exp().item(), e.mean().item())
            for n, e in zip(nll.split(lengths), entropy.split(lengths))
        ]

    @torch.inference_mode()
    def score_plainly(self, ids):
        logits = self.hidden(ids)[:-1].double() @ self.head.double().t()
        return logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    server = Server(options.device)
    lengths = torch.randint(2, 60, (options.requests,)).tolist()
    requests = [torch.randint(0, VOCAB, (n,), device=options.device) for n in lengths]
    together = server.score(requests)
    for number, (ids, scores) in enumerate(zip(requests, together)):
        (alone,) = server.score([ids])
        worst = (scores.logprobs - server.score_plainly(ids)).abs().max().item()
        print(
            f"request {number:2}: {len(ids):3} tokens, perplexity {scores.perplexity:9.1f}, "
            f"entropy {scores.mean_entropy:.3f}, off f64 by {worst:.1e}"
        )
        if not torch.equal(alone.logprobs, scores.logprobs):
            sys.exit(f"request {number} gets other bits alone than in its batch")
        if worst > 1e-3:
            sys.exit(f"request {number} is off by {worst}")


if __name__ == "__main__":
    main()
