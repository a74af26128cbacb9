"""NumPyro: a chain of a No-U-Turn sampler, a stretch of samples at a time.

python numpyro_mcmc.py --steps 40
"""

import argparse

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from digest import Digest, seed_all
from numpyro.infer import MCMC, NUTS


def model(x, y=None):
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    numpyro.sample("y", dist.Normal(x @ weights, scale), obs=y)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    dice = np.random.default_rng(args.seed)
    x = dice.standard_normal((400, 6))
    y = x @ np.arange(6) + dice.standard_normal(400)
    chain = MCMC(NUTS(model), num_warmup=60, num_samples=20, progress_bar=False)
    chain.run(jax.random.PRNGKey(args.seed), x, y)
    digest = Digest()
    for _ in range(args.steps):
        chain.post_warmup_state = chain.last_state
        chain.run(chain.last_state.rng_key, x, y)
        digest.step(float(chain.get_samples()["weights"].mean()))
    digest.finish({name: np.asarray(values) for name, values in sorted(chain.get_samples().items())})


if __name__ == "__main__":
    main()
