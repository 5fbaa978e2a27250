"""The onnx package's own node tests, through its Backend interface.

Every test whose operators are all in zstate.onnx's table is run: it passes, or it is in the list of
what is refused, and then it is refused by an error of zstate's own.
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.backend.test import BackendTest
from onnx.backend.test.loader import load_model_tests

import zstate as zs
from zstate.onnx.backend import Backend
from zstate.onnx.nodes import ROWS

# What the graph does not have, as patterns of names of tests.
REFUSED = [
    r"test_cast(like|_no_saturate|_e8m0)?_.*(FLOAT8|FLOAT4|INT4|INT2).*",  # types below eight bits
    r"test_.*string.*",
    r"test_identity_(sequence|opt)",
    r"test_(batchnorm.*_training_mode|training_dropout.*)",
    r"test_gelu_default_[12]",  # erf
    r"test_wrap_pad",
    r"test_reduce_(log_sum_exp|max|min)_empty_set",  # of no elements
]

# Whose expectation, rounded to float16 by every operator, is further from the exact one than ours.
ROUNDED = ["test_attention_4d_causal_fp16_expanded"]


# Their expectations, by loops in Python, are most of what it takes to load the tests.
for _operator in ("AveragePool", "LpPool", "MaxPool"):
    if _operator not in ROWS:
        _name = f"onnx.backend.test.case.node.{_operator.lower()}"
        sys.modules.setdefault(_name, ModuleType(_name))


def _model(case: Any) -> Any:
    return case.model or onnx.load(Path(case.model_dir) / "model.onnx")


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the package's own, while it makes its expectations
    CLAIMED = {
        case.name: _model(case)
        for case in load_model_tests(kind="node")
        if {node.op_type for node in _model(case).graph.node} <= set(ROWS)
    }
    _tests = BackendTest(Backend, __name__)
OUT = [
    name
    for name, model in CLAIMED.items()
    if any(re.fullmatch(pattern, name) for pattern in REFUSED)
    or any(node.op_type in ("Scan", "Loop") for node in model.graph.node)  # but for layers
]
RUN = {*CLAIMED} - {*OUT, *ROUNDED}
for _name in CLAIMED:
    if _name in RUN:
        _tests.include(f"^{_name}_cpu$")
NodeTests = _tests.test_cases["OnnxBackendNodeModelTest"]  # unittest's, which pytest collects
for _name in [name for name in vars(NodeTests) if name.startswith("test_")]:
    if _name.removesuffix("_cpu") not in RUN:
        delattr(NodeTests, _name)  # of another operator or device


def test_the_recurrent_nodes_are_all_claimed() -> None:
    names = [name for name in CLAIMED if re.match(r"test_(simple_rnn|rnn|lstm|gru)_", name)]
    assert len(names) >= 17 and not set(names) & set(OUT)
    assert "test_lstm_with_peepholes" in names
    assert len(RUN) > 1000


@pytest.mark.parametrize("name", OUT)
def test_what_is_refused(name: str) -> None:
    feeds = {value.name: np.array(True) for value in CLAIMED[name].graph.input}
    with pytest.raises(zs.ZStateError):
        Backend.prepare(CLAIMED[name]).fixed(feeds)
