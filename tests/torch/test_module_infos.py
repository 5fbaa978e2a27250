"""PyTorch's own table of module tests, its rows for recurrent modules pointed at ours.

The inputs, constructors and error inputs come from torch.testing._internal.common_modules; what
is done with them is what PyTorch's test suite does with every module. Two things differ on purpose:

- Error messages are in zstate's one format; that an error comes, and before anything is computed,
  is tested.
- Memory formats: PyTorch tries those on inputs of 4 and 5 axes, which these modules do not take.
"""

from __future__ import annotations

import copy
import pickle
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import zstate.torch as zt

pytest.importorskip("expecttest", reason="PyTorch's test helpers need it")
from torch.testing._internal.common_modules import module_db

OURS = {
    getattr(torch.nn, name): getattr(zt, name)
    for name in ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")
}
INFOS = {info.module_cls.__name__: info for info in module_db if info.module_cls in OURS}
NAMES = sorted(INFOS)


@cache
def rows(name: str, training: bool = True, dtype: torch.dtype = torch.float64) -> list[Any]:
    made: list[Any] = INFOS[name].module_inputs_func(
        INFOS[name], device="cpu", dtype=dtype, requires_grad=True, training=training
    )
    return made


def module_of(row: Any, name: str, dtype: torch.dtype = torch.float64) -> Any:
    """Our module, with the weights that the same seed gives."""
    given = row.constructor_input
    torch.manual_seed(0)
    return getattr(zt, name)(*given.args, **given.kwargs, device="cpu", dtype=dtype)


def call(module: Any, row: Any) -> Any:
    given = row.forward_input
    return module(*given.args, **given.kwargs)


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    return [t for each in value for t in tensors(each)] if hasattr(value, "__iter__") else []


def same(found: Any, wanted: Any) -> None:
    for mine, other in zip(tensors(found), tensors(wanted), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_all_six_are_in_the_table() -> None:
    assert len(NAMES) == 6 and all(rows(name) for name in NAMES)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_forward(name: str, training: bool) -> None:
    for row in rows(name, training):
        given = row.constructor_input
        torch.manual_seed(0)
        theirs = INFOS[name].module_cls(*given.args, **given.kwargs, dtype=torch.float64)
        ours = module_of(row, name).train(training)
        found = call(ours, row)
        same(found, call(theirs.train(training), row))
        # the row's own reference: for cells, one sequence without a batch axis
        if row.reference_fn is not None and name in ("RNNCell", "LSTMCell", "GRUCell"):
            args, kwargs = row.forward_input.args, row.forward_input.kwargs
            same(found, row.reference_fn(ours, *args, **kwargs))


@pytest.mark.parametrize("name", NAMES)
def test_repr_and_modes(name: str) -> None:
    for row in rows(name):
        module = module_of(row, name)
        assert name in repr(module)
        assert not module.eval().training and module.train().training


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_factory_arguments(name: str, dtype: torch.dtype) -> None:
    for row in rows(name, dtype=dtype)[:4]:
        module = module_of(row, name, dtype)
        assert all(p.dtype == dtype and p.device.type == "cpu" for p in module.parameters())
        assert all(t.dtype == dtype for t in tensors(call(module, row)))
        given = row.constructor_input
        empty = getattr(zt, name)(*given.args, **given.kwargs, device="meta", dtype=dtype)
        assert all(p.is_meta for p in empty.parameters())
        empty.to_empty(device="cpu").load_state_dict(module.state_dict())
        same(call(empty, row), call(module, row))


@pytest.mark.parametrize("name", NAMES)
def test_pickle_and_deepcopy(name: str) -> None:
    for row in rows(name):
        module = module_of(row, name)
        wanted = call(module, row)
        same(call(pickle.loads(pickle.dumps(module)), row), wanted)
        same(call(copy.deepcopy(module), row), wanted)


@pytest.mark.parametrize("name", NAMES)
def test_moves_of_type(name: str) -> None:
    for row in rows(name)[:6]:
        module = module_of(row, name)
        wanted = call(module, row)
        module.float()
        assert all(p.dtype == torch.float32 for p in module.parameters())
        module.double()
        for mine, other in zip(tensors(call(module, row)), tensors(wanted), strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


def spread(tensor: Tensor) -> Tensor:
    """The same numbers, every other element of a larger tensor."""
    wide = tensor.detach().repeat_interleave(2, dim=-1)[..., ::2]
    return wide.requires_grad_(tensor.requires_grad)


@pytest.mark.parametrize("name", NAMES)
def test_non_contiguous(name: str) -> None:
    for row in rows(name):
        module = module_of(row, name)
        loss = sum(t.sin().sum() for t in tensors(call(module, row)))
        inputs = [t for t in tensors([row.forward_input.args, row.forward_input.kwargs])
                  if t.requires_grad]  # fmt: skip
        leaves = [*inputs, *module.parameters()]
        wanted = torch.autograd.grad(loss, leaves, allow_unused=True)
        replaced = {id(t): spread(t) for t in inputs}

        def moved(value: Any, replaced: dict[int, Tensor] = replaced) -> Any:
            if isinstance(value, tuple | list):
                return type(value)(moved(each) for each in value)
            return replaced.get(id(value), value)

        for parameter in module.parameters():
            parameter.data = spread(parameter.data)
        kwargs = {key: moved(value) for key, value in row.forward_input.kwargs.items()}
        output = module(*moved(tuple(row.forward_input.args)), **kwargs)
        loss = sum(t.sin().sum() for t in tensors(output))
        found = torch.autograd.grad(
            loss, [*(replaced[id(t)] for t in inputs), *module.parameters()], allow_unused=True
        )
        for mine, other in zip(found, wanted, strict=True):
            assert (mine is None) == (other is None)
            if mine is not None:
                torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_grad_and_gradgrad(name: str) -> None:
    # Every fifth row: together they have every value of every option.
    for row in rows(name)[:: 5 if len(rows(name)) > 5 else 1]:
        module = module_of(row, name)
        names = [key for key, _ in module.named_parameters()]
        parameters = [p.detach().clone().requires_grad_() for p in module.parameters()]
        args = row.forward_input.args
        inputs = [t for t in tensors(args) if t.requires_grad]

        def function(*leaves: Tensor, module: Any = module, names: Any = names,
                     args: Any = args, count: int = len(inputs)) -> tuple[Tensor, ...]:  # fmt: skip
            moved = iter(leaves[:count])

            def fill(value: Any) -> Any:
                if isinstance(value, Tensor):
                    return next(moved) if value.requires_grad else value
                return tuple(fill(each) for each in value) if value is not None else None

            weights = dict(zip(names, leaves[count:], strict=True))
            output = torch.func.functional_call(module, weights, tuple(fill(a) for a in args))
            return tuple(tensors(output))

        leaves = (*inputs, *parameters)
        assert gradcheck(function, leaves, fast_mode=True)
        assert gradgradcheck(function, leaves, fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_errors(name: str) -> None:
    info = INFOS[name]
    for each in info.module_error_inputs_func(
        info, device="cpu", dtype=torch.float64, requires_grad=True, training=True
    ):
        row = each.module_error_input
        given = row.constructor_input
        with pytest.raises((ValueError, TypeError), match=r"^\[.*\] .*: expected"):
            call(getattr(zt, name)(*given.args, **given.kwargs), row)
