"""JAX and Optax: a small network under jit; XLA has threads and compiled code of its own.

python jax_fit.py --steps 400
"""

import argparse
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from digest import Digest, seed_all


def predict(params, x):
    for weights, bias in params[:-1]:
        x = jnp.tanh(x @ weights + bias)
    weights, bias = params[-1]
    return x @ weights + bias


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    key, sizes = jax.random.PRNGKey(args.seed), (32, 256, 256, 1)
    params = []
    for width, height in itertools.pairwise(sizes):
        key, own = jax.random.split(key)
        params.append((jax.random.normal(own, (width, height)) / width**0.5, jnp.zeros(height)))
    optimizer = optax.adamw(1e-3)
    state = optimizer.init(params)

    @jax.jit
    def step(params, state, key):
        x = jax.random.normal(key, (256, 32))
        y = jnp.sin(x[:, :4].sum(1, keepdims=True))
        loss, gradients = jax.value_and_grad(lambda p: jnp.mean((predict(p, x) - y) ** 2))(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    digest = Digest()
    for _ in range(args.steps):
        key, own = jax.random.split(key)
        params, state, loss = step(params, state, own)
        digest.step(loss)
    digest.finish([np.asarray(leaf) for leaf in jax.tree_util.tree_leaves((params, state, key))])


if __name__ == "__main__":
    main()
