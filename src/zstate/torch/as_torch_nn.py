"""The attributes of torch.nn's RNNBase and RNNCellBase on our modules, or an error.

The layers are RNNBase and the cells RNNCellBase; those in nn.py are torch.nn.LSTM and so on too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Proxy as Proxy  # for the modules

from ..errors import OptionError, refusal
from .private import own_parameters

# Options that torch.nn's modules lack, and the value that means an option is not used.
_OURS = {
    "recurrent_dropout": 0.0,
    "peephole": False,
    "peephole_on_new_cell": False,
    "activations": None,
    "return_cells": False,
    "reset_after": True,
    "cell": None,
    "heads": 1,
    "zoneout": 0.0,
    "clip": None,
}


_TORCH_NN_WEIGHTS = ("_all_weights", "_flat_weights_names", "_flat_weights")


def beyond_torch_nn(module: torch.nn.Module) -> str | None:
    """The first option of a module that torch.nn's do not have."""
    for option, nothing in _OURS.items():
        # A cell has its peephole as a parameter of that name.
        if option in own_parameters(module) or module.__dict__.get(option, nothing) != nothing:
            return option
    return None


def leaf_call(module: torch.nn.Module, *arguments: Any) -> Any:
    """What torch.fx records for a call on its proxies: the module itself, as of torch.nn's."""
    tracer: Any = arguments[0].tracer
    return tracer.create_proxy("call_module", tracer.path_of_module(module), arguments, {})


class _Refusing(torch.nn.Module):
    """What would compute torch.nn's operation in place of ours is refused in words."""

    def __setattr__(self, name: str, value: Any) -> None:
        # torch.ao.quantization marks the modules that it is about to swap.
        if name == "qconfig" and value is not None:
            expected = (
                "None, which keeps it in float (torch.ao.quantization cannot convert it: call "
                'zstate.torch.restore(model) first, or zstate.prepare(layers, weights="int8"))'
            )
            raise OptionError(refusal(type(self).__name__, name, expected, type(value).__name__))
        torch.nn.Module.__setattr__(self, name, value)

    def __prepare_scriptable__(self) -> torch.nn.Module:
        expected = "torch.jit.trace, torch.export or zstate.torch.restore(model) first"
        raise OptionError(refusal(type(self).__name__, "torch.jit", expected, "torch.jit.script"))


class LayerBase(_Refusing, torch.nn.RNNBase):
    """RNNBase without its second list of the weights, which may be out of date.

    The list is made when it is read, and refused where torch.nn's operation on these weights would
    not be ours.
    """

    _apply = torch.nn.Module._apply
    _replicate_for_data_parallel = torch.nn.Module._replicate_for_data_parallel
    __getstate__ = torch.nn.Module.__getstate__
    __setstate__ = torch.nn.Module.__setstate__

    def flatten_parameters(self) -> None:
        """Does nothing: the parameters are used as they are. For code written for torch.nn."""

    def _init_flat_weights(self) -> None:
        """Nothing, likewise."""

    def _weight_names(self) -> list[list[str]]:
        """The parameters of each layer and direction, in torch.nn's order."""
        raise NotImplementedError

    def __dir__(self) -> list[str]:
        """Without what is refused, for torch.jit.trace and others that read all there is."""
        names: list[str] = super().__dir__()
        if beyond_torch_nn(self) is None:
            return names
        return [name for name in names if name not in _TORCH_NN_WEIGHTS]

    @property
    def all_weights(self) -> list[list[Any]]:
        """The parameters of each layer and direction, as torch.nn lists them."""
        return [[getattr(self, name) for name in names] for names in self._weight_names()]

    @property
    def _all_weights(self) -> list[list[str]]:  # type: ignore[override]
        option = beyond_torch_nn(self)
        if option is not None:
            expected = "weights of torch.nn's operation: use all_weights or named_parameters()"
            raise OptionError(
                refusal(type(self).__name__, "_all_weights", expected, f"a layer with {option}")
            )
        return self._weight_names()

    @property
    def _flat_weights_names(self) -> list[str]:  # type: ignore[override]
        return [name for names in self._all_weights for name in names]

    @property
    def _flat_weights(self) -> list[Tensor]:  # type: ignore[override]
        return [getattr(self, name) for name in self._flat_weights_names]


class CellBase(_Refusing, torch.nn.RNNCellBase):
    """RNNCellBase."""
