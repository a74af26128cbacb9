"""Optuna: a search whose trials are kept in a SQLite file, through SQLAlchemy.

python optuna_sqlite.py --steps 40
"""

import argparse
import os

import optuna
from digest import Digest, seed_all


def objective(trial):
    x, y = trial.suggest_float("x", -5, 5), trial.suggest_int("y", 0, 20)
    kind = trial.suggest_categorical("kind", ("a", "b", "c"))
    return (x - 1.5) ** 2 + abs(y - 7) + "abc".index(kind)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if os.path.exists("study.db"):
        os.remove("study.db")
    sampler = optuna.samplers.TPESampler(seed=args.seed)
    study = optuna.create_study(storage="sqlite:///study.db", sampler=sampler, study_name="search")
    digest = Digest()
    study.optimize(objective, args.steps, callbacks=[lambda study, trial: digest.step(trial.value)])
    digest.finish([[trial.number, trial.value, *map(str, trial.params.values())] for trial in study.get_trials()])


if __name__ == "__main__":
    main()
