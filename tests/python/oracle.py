"""The contract of linear cross entropy in f64 NumPy, written apart from the library, and bounds
that hold for f32."""

import numpy as np

BOUND = 2e-5  # of nll, lse and entropy, times 1 + max |z|; of dx and dw, by norm


def problem(tokens, hidden, vocab, seed=0, ignore=0.2):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, hidden)).astype(np.float32)
    w = (rng.standard_normal((vocab, hidden)) / np.sqrt(hidden)).astype(np.float32)
    target = rng.integers(0, vocab, tokens)
    target[rng.random(tokens) < ignore] = -100
    return x, w, target


def loss_and_gradients(
    x, w, target, g_nll=0.0, g_entropy=0.0, g_lse=0.0, temperature=1.0, cap=None, ignore=-100
):
    """nll, entropy, lse, dx, dw, and the largest |z| of each row."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    a = x @ w.T
    slope = np.ones_like(a)
    if cap is not None:
        slope = 1 - np.tanh(a / cap) ** 2
        a = cap * np.tanh(a / cap)
    z = a / temperature
    top = z.max(axis=1, keepdims=True)
    lse = (top + np.log(np.exp(z - top).sum(axis=1, keepdims=True)))[:, 0]
    log_p = z - lse[:, None]
    p = np.exp(log_p)
    entropy = -(p * log_p).sum(axis=1)
    counts = target != ignore
    hot = np.zeros_like(z)
    hot[np.flatnonzero(counts), target[counts]] = 1
    nll = lse - (z * hot).sum(axis=1)

    def column(g):
        return np.broadcast_to(np.asarray(g, np.float64), len(x))[:, None]

    dz = (
        column(g_nll) * (p - hot)
        - column(g_entropy) * p * (log_p + entropy[:, None])
        + column(g_lse) * p
    )
    dz = np.where(counts[:, None], dz, 0) / temperature * slope
    return (
        np.where(counts, nll, 0),
        np.where(counts, entropy, 0),
        lse,
        dz @ w,
        dz.T @ x,
        np.abs(z).max(axis=1),
    )


def close(found, right, z_max):
    """A loss a row, within the bound of its own logits."""
    return np.all(np.abs(np.asarray(found, np.float64) - right) <= BOUND * (1 + z_max))


def near(found, right, bound=BOUND):
    """A matrix, by Frobenius norm."""
    found = np.asarray(found, np.float64)
    return np.linalg.norm(found - right) <= bound * np.linalg.norm(right) + 1e-12
