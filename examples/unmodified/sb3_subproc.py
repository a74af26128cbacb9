"""Stable-Baselines3: PPO with each environment in a process of its own.

python sb3_subproc.py --steps 20
"""

import argparse

import stable_baselines3
from digest import Digest, seed_all
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import SubprocVecEnv


class Reporter(BaseCallback):
    """A line for each rollout: the mean of the rewards in it."""

    def __init__(self, digest):
        super().__init__()
        self.digest = digest

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        self.digest.step(self.model.rollout_buffer.returns.mean())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    environments = make_vec_env("CartPole-v1", 2, seed=args.seed, vec_env_cls=SubprocVecEnv)
    model = stable_baselines3.PPO("MlpPolicy", environments, n_steps=64, n_epochs=4, seed=args.seed, device="cpu")
    digest = Digest()
    model.learn(args.steps * 128, callback=Reporter(digest))
    environments.close()
    digest.finish(model.policy.state_dict(), model.policy.optimizer.state_dict())


if __name__ == "__main__":
    main()
