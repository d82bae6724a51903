"""A PPO update with weft: a policy writes short answers, is rewarded for words of its prompt's
kind, and is improved by clipped ratios of log-probabilities and an entropy bonus. Log-probabilities
and entropies, forward and backward, come from one call that stores no logits.

    python ppo_update.py [--iterations 60] [--device cpu|cuda]

Prints the mean reward; fails where it does not rise, or where the first ratio of an iteration is
not 1: the same function, with the same bits for a row in any batch, gives the rollout's
log-probabilities and the trainer's."""

import argparse
import sys

import torch
import weft

VOCAB, WIDTH, KINDS, ANSWERS, LENGTH = 512, 32, 8, 64, 6
TEMPERATURE, CLIP, BONUS = 0.8, 0.2, 0.003


class Policy(torch.nn.Module):
    """The next word from the prompt's kind and the last word."""

    def __init__(self):
        super().__init__()
        self.kinds, self.words = (
            torch.nn.Embedding(KINDS, WIDTH),
            torch.nn.Embedding(VOCAB + 1, WIDTH),
        )
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH)
        )
        self.head = torch.nn.Parameter(torch.randn(VOCAB, WIDTH) * 0.1)

    def hidden(self, kind, last):
        return self.layers(self.kinds(kind) + self.words(last))

    def score(self, kind, answers):
        """Log-probabilities and entropies of all words of all answers at once: [answers,
        length]."""
        start = torch.full_like(answers[:, :1], VOCAB)
        hidden = self.hidden(kind[:, None], torch.cat([start, answers[:, :-1]], dim=1))
        nll, entropy = weft.linear_cross_entropy(
            hidden.to(self.compute),
            self.head.to(self.compute),
            answers,
            temperature=TEMPERATURE,
            return_entropy=True,
        )
        return -nll, entropy

    @property
    def compute(self):  # GPUs multiply bf16
        return torch.bfloat16 if self.head.is_cuda else torch.float32


@torch.no_grad()
def rollout(policy, kind):
    """Samples answers word by word, and scores them."""
    answers, last = [], torch.full_like(kind, VOCAB)
    for _ in range(LENGTH):
        logits = policy.hidden(kind, last) @ policy.head.t() / TEMPERATURE
        last = torch.multinomial(logits.softmax(-1), 1)[:, 0]
        answers.append(last)
    answers = torch.stack(answers, dim=1)
    return answers, policy.score(kind, answers)[0]


def rewards(kind, answers):
    """1 for each word of the prompt's kind."""
    return (answers % KINDS == kind[:, None]).float()


def update(policy, optimizer, kind, answers, old, advantage, epochs=4):
    """Returns the first ratios' largest distance from 1."""
    first = None
    for _ in range(epochs):
        logprobs, entropy = policy.score(kind, answers)
        ratio = (logprobs - old).exp()
        first = (ratio - 1).abs().max().item() if first is None else first
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        loss = (
            -torch.minimum(ratio * advantage, clipped * advantage).mean() - BONUS * entropy.mean()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return first


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.manual_seed(0)
    policy = Policy().to(options.device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    history = []
    for iteration in range(options.iterations):
        kind = torch.randint(0, KINDS, (ANSWERS,), device=options.device)
        answers, old = rollout(policy, kind)
        reward = rewards(kind, answers)
        advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
        first = update(policy, optimizer, kind, answers, old, advantage)
        history.append(reward.mean().item())
        if first != 0:
            sys.exit(f"iteration {iteration}: the first ratio is off 1 by {first}")
        if iteration % 10 == 0 or iteration == options.iterations - 1:
            print(f"iteration {iteration:3}: reward {history[-1]:.3f}")
    if not sum(history[-5:]) / 5 > 2 / KINDS:
        sys.exit("the reward did not rise to twice chance")


if __name__ == "__main__":
    main()
