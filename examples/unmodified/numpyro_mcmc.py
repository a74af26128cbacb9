"""NumPyro: a chain of a No-U-Turn sampler, its warm-up included, a few samples at a time.

python numpyro_mcmc.py --steps 200
"""

import argparse

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from digest import Digest, seed_all
from numpyro.infer import NUTS


def model(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(x @ weights, scale), obs=y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    dice = np.random.default_rng(args.seed)
    x = dice.standard_normal((400, 6))
    y = x @ np.arange(6) + dice.standard_normal(400)
    kernel = NUTS(model)
    state = kernel.init(jax.random.PRNGKey(args.seed), 200, model_args=(x, y))
    sample = jax.jit(lambda state: kernel.sample(state, (x, y), {}))
    digest = Digest()
    for _ in range(args.steps):
        for _ in range(5):
            state = sample(state)
        digest.step(float(state.potential_energy))
    digest.finish({name: np.asarray(values) for name, values in sorted(state.z.items())})


if __name__ == "__main__":
    main()
