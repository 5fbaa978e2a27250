"""A call by stages, as the engines compute it, on plain arrays: slow, and easy to follow.

One direction at a time, steps in processing order; every leaf of a stage is read from a dictionary,
so that one which the stages do not provide fails.
"""

from __future__ import annotations

import numpy as np

from zstate.arrays import NUMPY
from zstate.cells.backward_stages import backward_stages
from zstate.cells.program import no_products, on_arrays
from zstate.cells.stages import forward_stages


class Side:
    """One direction of a call."""

    def __init__(self, cell, descriptor, inputs, index):
        self.cell, self.names = cell, [state.name for state in cell.states]
        self.directions = 2 if descriptor.bidirectional else 1
        self.backwards = index == 1 if self.directions == 2 else descriptor.reverse
        self.index, self.inputs = index, inputs
        x = inputs["source"]
        G = len(cell.gates)
        self.H = inputs["recurrent_weight"].shape[-1]
        self.T, self.N = x.shape[:2]
        self.R = dict(
            zip(
                cell.gates, self.part("recurrent_weight", 0).reshape(G, self.H, self.H), strict=True
            )
        )
        gates = x @ inputs["input_weight"].T
        if inputs["bias"] is not None:
            gates = gates + inputs["bias"]
        self.x = self.turned(self.last_axis(gates)).reshape(self.T, self.N, G, self.H)
        self.mask = None
        if inputs["mask"] is not None:
            self.mask = self.turned(self.last_axis(inputs["mask"]))
        self.resets = None
        if inputs.get("resets") is not None:  # [T,N,D], as the engines get them
            self.resets = self.turned(inputs["resets"][..., index : index + 1])
        self.own = {}
        for name, _, by_gate, *_ in cell.own:
            if inputs[name] is None:
                continue
            if by_gate:
                rows = self.part(name, 0).reshape(G, self.H)
                self.own |= {("own", name, gate): rows[k] for k, gate in enumerate(cell.gates)}
            else:
                self.own["own", name] = self.last_axis(inputs[name])
        zeros = np.zeros((self.N, self.H))
        self.initial = [
            zeros if inputs[s.initial] is None else self.last_axis(inputs[s.initial])
            for s in cell.states
        ]
        own = frozenset(name for name, *_ in cell.own if inputs[name] is not None)
        self.form = (descriptor, own, self.mask is not None, self.resets is not None)

    def part(self, name, axis):
        value = self.inputs[name]
        return np.split(value, self.directions, axis)[self.index]

    def last_axis(self, value):
        return np.split(value, self.directions, -1)[self.index]

    def turned(self, value):
        return value[::-1] if self.backwards else value

    def turned_output(self, value):
        """Outputs lie in processing order unless there are two directions."""
        return value[::-1] if self.directions == 2 and self.index == 1 else value

    def constants(self, s, ahead):
        """The own parameters, and the masks of step s and of the one that lies ``ahead``."""
        found = dict(self.own)
        for kind, given in (("mask", self.mask), ("reset", self.resets)):
            if given is None:
                continue
            if 0 <= s < self.T:
                found[kind,] = given[s]
            if 0 <= s + ahead < self.T:
                found[f"next_{kind}",] = given[s + ahead]
        return found


def compute(equations, leaves):
    values = equations.text.run(leaves.__getitem__, on_arrays(NUMPY), no_products)
    return dict(zip(equations.labels, values, strict=True))


def forward_side(side, x_ahead=False):
    """With ``x_ahead``, what a product needs of the input is read a step ahead, as CUDA does."""
    stages = forward_stages(side.cell.forward(*side.form), x_ahead)
    assert not x_ahead or all(stages.products) or not side.cell.forward(*side.form).products
    H, G, N, T = side.H, len(side.cell.gates), side.N, side.T
    now = side.initial
    saved = np.zeros((T, N, G, H))
    states = np.zeros((len(now), T, N, H))
    after = {("after", name): value for name, value in zip(side.names, now, strict=True)}

    def x_at(t, kind):
        return {(kind, gate): side.x[t][:, k] for k, gate in enumerate(side.cell.gates)}

    operands = compute(stages.first, after | side.constants(-1, 1) | x_at(0, "next_x"))
    carried = {}
    for t in range(T):
        before = {("before", name): value for name, value in zip(side.names, now, strict=True)}
        x = x_at(t, "x") | (x_at(min(t + 1, T - 1), "next_x") if x_ahead else {})
        for products, equations in zip(stages.products, stages.stages, strict=True):
            made = {
                ("product", str(p.operand), gate): operands["operand", str(p.operand)]
                @ side.R[gate].T
                for p in products
                for gate in p.gates
            }
            leaves = before | x | made | carried | side.constants(t, 1)
            if t == T - 1 and side.mask is not None:
                leaves["next_mask",] = np.zeros((N, H))  # nothing follows
            if t == T - 1 and side.resets is not None:
                leaves["next_reset",] = np.zeros((N, 1))
            for label, value in compute(equations, leaves).items():
                if label[0] == "operand":
                    operands[label] = value
                elif label[0] == "carried":
                    carried[label] = value
                elif label[0] == "saved":
                    saved[t][:, side.cell.gates.index(label[1])] = value
                else:
                    states[side.names.index(label[1]), t] = value
        now = list(states[:, t])
    return states, saved.reshape(T, N, G * H)


def run_forward(cell, descriptor, inputs, x_ahead=False):
    sides = [Side(cell, descriptor, inputs, k) for k in range(1 + descriptor.bidirectional)]
    found = [forward_side(side, x_ahead) for side in sides]
    joined = {
        name: [
            side.turned_output(states[k]) for side, (states, _) in zip(sides, found, strict=True)
        ]
        for k, name in enumerate(sides[0].names)
    }
    joined["training_state"] = [
        side.turned_output(saved) for side, (_, saved) in zip(sides, found, strict=True)
    ]
    return {name: np.concatenate(parts, -1) for name, parts in joined.items()}


def backward_side(side, given, in_registers=False):
    """With ``in_registers``, only the first stage of a step reads, as in CUDA."""
    cell, names, H, G, N, T = side.cell, side.names, side.H, len(side.cell.gates), side.N, side.T
    last = {
        s.name
        for s in cell.states
        if s.last_gradient != s.gradient and given.get(s.last_gradient) is not None
    }
    outer = {s.name for s in cell.states if given.get(s.gradient) is not None}
    back = cell.backward(*side.form)
    stages = backward_stages(back, frozenset(outer), frozenset(last), in_registers)
    assert not in_registers or all(stages.products) or not back.products

    def steps(name):
        return side.turned_output(side.last_axis(given[name]))

    saved = steps("z_state").reshape(T, N, G, H)
    after = {s.name: steps(s.output) for s in cell.states if s.name in cell.fed_states}

    def saved_at(t):
        return {("saved", gate): saved[t][:, k] for k, gate in enumerate(cell.gates)}

    if stages.first_state is not None:
        rows = []
        for t in range(T):
            leaves = saved_at(t) | {("after", n): v[t] for n, v in after.items()} | side.own
            rows.append(compute(stages.first_state, leaves)["after", names[0]])
        after[names[0]] = np.stack(rows)

    def known(t):
        found = saved_at(t) | side.constants(t, 1)
        for name, first in zip(names, side.initial, strict=True):
            found["after", name] = after[name][t]
            found["before", name] = after[name][t - 1] if t else first
        for state in cell.states:
            if state.name in outer:
                found["outer", state.name] = steps(state.gradient)[t]
            if state.name in last:
                found["last", state.name] = side.last_axis(given[state.last_gradient])
        return found

    # Products that are needed again, of every step, in their order; then what R multiplied.
    again = [{} for _ in range(T)]
    operands = [[] for _ in range(T)]
    for t in range(T):
        for product in stages.recomputed:
            leaves = known(t) | again[t]
            (value,) = compute(stages.operands[product.operand], leaves).values()
            for gate in product.gates:
                again[t]["recomputed", str(product.operand), gate] = value @ side.R[gate].T
        for equations in stages.operands:
            operands[t].append(*compute(equations, known(t) | again[t]).values())

    gates = np.zeros((T, N, G, H))
    dR = np.zeros((G, H, H))
    own = {leaf: np.zeros(H) for leaf in side.own}
    carried, passed = {}, {}
    of_step = [{} for _ in range(T)]  # all gradients, by step
    given_operands = [{} for _ in range(T)]

    def multiply(products):
        return {
            ("back", str(p.operand)): sum(
                passed.get(("product", str(p.operand), gate), passed.get(("x", gate)))
                @ side.R[gate]
                for gate in p.gates
            )
            for p in products
        }

    def take(t, found):
        """What a stage gives of step t, or of the one behind it."""
        for label, value in found.items():
            value = np.broadcast_to(value, (N, H))
            at = t
            if label[0] == "behind":
                at, label = t + 1, label[1:]
            if label[0] == "carried":
                carried[label] = value
            elif label[0] == "own":
                own[label] = own[label] + value.sum(0)
            elif label[0] == "operand":
                given_operands[at][int(label[1])] = value
            else:
                of_step[at][label] = value
                if at == t:
                    passed[label] = value
                if label[0] == "x":
                    gates[at][:, cell.gates.index(label[1])] = value

    for t in reversed(range(T)):
        for k, equations in enumerate(stages.stages):
            made = multiply(stages.products[k]) if k or t < T - 1 else {}
            equations = stages.begin if t == T - 1 and k == 0 else equations
            if k == 0:
                passed.clear()
            leaves = side.constants(t, 1) if k and in_registers else known(t) | again[t]
            if in_registers and stages.first_state is not None:
                leaves.pop(("after", names[0]), None)
            take(t, compute(equations, leaves | carried | made))
    ends = side.constants(-1, 1) | {
        ("after", n): v for n, v in zip(names, side.initial, strict=True)
    }
    first = compute(stages.end, ends | carried | multiply(stages.products[0]))
    take(-1, {label: value for label, value in first.items() if label[0] == "behind"})
    for t in range(T):
        for (gate, operand), _ in back.products.items():
            k = back.operands.index(operand)
            d = of_step[t].get(("product", str(k), gate), of_step[t].get(("x", gate)))
            multiplied = given_operands[t][k] if in_registers else operands[t][k]
            dR[cell.gates.index(gate)] += d.T @ multiplied
    return gates, dR, own, first


def run_backward(cell, descriptor, given, in_registers=False):
    sides = [Side(cell, descriptor, given, k) for k in range(1 + descriptor.bidirectional)]
    found = [backward_side(side, given, in_registers) for side in sides]
    zeros = np.zeros((sides[0].N, sides[0].H))
    results = {}
    gates = [
        side.turned(g).reshape(*g.shape[:2], -1) for side, (g, *_) in zip(sides, found, strict=True)
    ]
    gates = np.concatenate(gates, -1)
    results["source"] = gates @ given["input_weight"]
    results["input_weight"] = np.einsum("tng,tni->gi", gates, given["source"])
    if given["bias"] is not None:
        results["bias"] = gates.sum((0, 1))
    dR = [r.reshape(-1, sides[0].H) for _, r, *_ in found]
    results["recurrent_weight"] = np.stack(dR).reshape(given["recurrent_weight"].shape)
    for name, _, by_gate, *_ in cell.own:
        if given[name] is None:
            continue
        parts = [
            np.concatenate([own["own", name, g] for g in cell.gates])
            if by_gate
            else own["own", name]
            for _, _, own, _ in found
        ]
        results[name] = np.concatenate(parts).reshape(given[name].shape)
    for state in cell.states:
        if given[state.initial] is not None:
            parts = [first.get(("before", state.name), zeros) for *_, first in found]
            results[state.initial] = np.concatenate(parts, -1)
    return results
