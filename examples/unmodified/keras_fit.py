"""Keras on its PyTorch backend: model.fit, with a checkpoint of its own after every epoch.

python keras_fit.py --steps 40
"""

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np
from digest import Digest, seed_all


class Reporter(keras.callbacks.Callback):
    """A line for each batch."""

    def __init__(self, digest):
        super().__init__()
        self.digest = digest

    def on_train_batch_end(self, batch, logs=None):
        self.digest.step(logs["loss"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    keras.utils.set_random_seed(args.seed)
    x = np.random.standard_normal((64 * 20, 16, 16, 1)).astype("float32")
    y = (x.mean((1, 2, 3)) > 0).astype("int32")
    layers = keras.layers
    model = keras.Sequential(
        [layers.Conv2D(8, 3, activation="relu"), layers.Dropout(0.2), layers.Flatten(), layers.Dense(2)]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    digest = Digest()
    callbacks = [Reporter(digest), keras.callbacks.ModelCheckpoint("best.weights.h5", save_weights_only=True)]
    model.fit(x, y, batch_size=64, epochs=-(-args.steps // 20), verbose=0, callbacks=callbacks)
    digest.finish([np.asarray(weights) for weights in model.get_weights()])


if __name__ == "__main__":
    main()
