"""verl's linear_cross_entropy (verl.utils.kernel): log-probabilities and entropies of labels, over
a tensor-parallel group where one is given."""

from .._api import linear_cross_entropy as _linear_cross_entropy


def linear_cross_entropy(
    hidden, weight, labels, temperature=1.0, reduction="none", dist_process_group=None
):
    """(log-probabilities, entropies) of all tokens, flat, f32. reduction, "sum" or "mean" over all
    tokens, is of the log-probabilities alone."""
    reduction = reduction.lower()
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(f'reduction is {reduction!r}, expected "none", "sum" or "mean"')
    nll, entropy = _linear_cross_entropy(
        hidden.reshape(-1, hidden.shape[-1]),
        weight,
        labels.reshape(-1),
        temperature=temperature,
        return_entropy=True,
        group=dist_process_group,
    )
    logprobs = -nll
    if reduction != "none":
        logprobs = logprobs.sum() if reduction == "sum" else logprobs.mean()
    return logprobs, entropy


class LinearCrossEntropy:
    """The autograd class's name: LinearCrossEntropy.apply is the function."""

    apply = staticmethod(linear_cross_entropy)
