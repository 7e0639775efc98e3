"""As much of torch, in numpy, as studies/training/model.py uses, so that its tests need no 200 MB of torch.

Each function does what torch's documentation says of the one of its name, for these arguments only.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np

float64, inf = np.float64, np.inf
no_grad = nullcontext


class Tensor(np.ndarray):
    """An array with the methods of a tensor."""

    def chunk(self, n, dim):
        return np.array_split(self, n, axis=dim)

    def float(self):
        return self.astype(np.float32)

    def to(self, dtype):
        return self.astype(dtype)

    def view(self, *shape):
        return self.reshape(*shape)

    def transpose(self, first, second):
        return self.swapaxes(first, second)

    def triu(self, diagonal):
        # np.triu would multiply: 0 * -inf
        rows, columns = np.indices(self.shape)
        return from_numpy(np.where(columns - rows >= diagonal, self, self.dtype.type(0)))

    def cos(self):
        return np.cos(self)

    def sin(self):
        return np.sin(self)

    def numpy(self):
        return np.asarray(self)


def from_numpy(array):
    return np.asarray(array).view(Tensor)


def arange(*bounds, dtype):
    return from_numpy(np.arange(*bounds, dtype=dtype))


def ones(n):
    return from_numpy(np.ones(n, np.float32))


def empty(*shape):
    return from_numpy(np.full(shape, np.nan, np.float32))


def full(shape, value):
    return from_numpy(np.full(shape, value, np.float32))


def cat(tensors, dim):
    return from_numpy(np.concatenate(tensors, axis=dim))


def bmm(first, second):
    assert first.ndim == second.ndim == 3
    return first @ second


def softmax(x, dim):
    powers = np.exp(x - x.max(axis=dim, keepdims=True))
    return powers / powers.sum(axis=dim, keepdims=True)


def _pad(x, widths):
    return from_numpy(np.pad(x, [(0, 0)] * (x.ndim - 1) + [widths]))


def _rms_norm(x, shape, weight, epsilon):
    assert tuple(shape) == x.shape[-1:]
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(epsilon)) * weight


functional = SimpleNamespace(
    pad=_pad,
    rms_norm=_rms_norm,
    silu=lambda x: x / (1 + np.exp(-x)),
    embedding=lambda tokens, weight: weight[tokens],
    linear=lambda x, weight: x @ weight.T,
)


class Parameter:
    """A weight: what `load_state_dict` sets by its place in the module."""

    def __init__(self, value):
        self.value = value


class Module:
    """Parameters and modules by attribute, as torch names them."""

    def __call__(self, *args):
        return self.forward(*args)

    def __setattr__(self, name, value):
        if isinstance(value, Parameter):
            self.__dict__.setdefault("parameters", set()).add(name)
            value = value.value
        self.__dict__[name] = value

    def load_state_dict(self, state):
        wanted = dict(self._places(""))
        assert wanted.keys() == state.keys()
        for name, (module, key) in wanted.items():
            assert getattr(module, key).shape == state[name].shape
            setattr(module, key, state[name])

    def _places(self, prefix):
        for name in self.__dict__.get("parameters", ()):
            yield prefix + name, (self, name)
        for name, value in self.__dict__.items():
            if isinstance(value, Module):
                yield from value._places(f"{prefix}{name}.")


class Linear(Module):
    def __init__(self, n_in, n_out, bias):
        assert not bias
        self.weight = Parameter(empty(n_out, n_in))

    def forward(self, x):
        return functional.linear(x, self.weight)


class ModuleList(Module):
    def __init__(self, modules):
        self.__dict__.update({str(i): module for i, module in enumerate(modules)})

    def __iter__(self):
        return iter(self.__dict__.values())


nn = SimpleNamespace(Module=Module, Parameter=Parameter, Linear=Linear, ModuleList=ModuleList, functional=functional)
