"""A toy language model of three layers, its weights in a file, tokens, and what a calibration finds of it."""

import numpy as np
import pytest

from factories import toy_weights, write_weights
from studies import weights
from studies.calibrate import calibrate


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_weights(tmp_path_factory.mktemp("lm") / "toy.safetensors", toy_weights())


@pytest.fixture(scope="module")
def model(path):
    return weights.load(path)


@pytest.fixture(scope="module")
def tokens():
    return np.concatenate((np.full((3, 1), weights.BOS), np.random.default_rng(1).integers(0, 256, (3, 79))), axis=1)


@pytest.fixture(scope="module")
def known(model, tokens):
    return calibrate(model, tokens[:2])
