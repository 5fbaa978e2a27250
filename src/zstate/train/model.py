"""The language model as a graph: embedding, recurrent layers, projection, loss, gradients, Adam.

One graph holds the parameters once and the programs around them: a step of training, validation
and sampling. All that training changes is a variable of it, the carried state and the random
generator included, so that a saved graph is a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from itertools import chain
from typing import Any

import numpy as np

from .. import cells
from ..cells import Cell
from ..descriptors import (
    Activation,
    AnyDescriptor,
    GRUDescriptor,
    LSTMDescriptor,
    SingleGateRNNDescriptor,
)
from ..errors import OptionError, refusal
from ..graph import Executable, Graph, Tensor
from ..graph.tensor import result_name
from ..layout import describe

# torch.nn's form of each cell; of a GRU, the reset after the product.
DESCRIPTORS: dict[str, AnyDescriptor] = {
    "rnn": SingleGateRNNDescriptor(activation=Activation.TANH),
    "lstm": LSTMDescriptor(produce_cell=True),
    "gru": GRUDescriptor(reset_after=True),
}
_CELLS = {cell.short: cell for cell in cells.CELLS}
TYPES = ("float32", "bfloat16", "float16")
# For float16, whose gradients would vanish: the loss is multiplied by a scale, which is halved
# after a step whose gradients overflow and doubled after this many steps without one.
_FIRST_SCALE, _STEPS_TO_DOUBLE, _LARGEST_SCALE = 2.0**15, 1000, 2.0**24
_KINDS: dict[type, Any] = {int: int, float: (int, float), str: str}
_BETA1, _BETA2, _EPSILON = 0.9, 0.99, 1e-8


class SettingError(OptionError):
    """An invalid setting; keeps its name, so that the command line can name the option typed."""

    def __init__(self, name: str, expected: str, got: str) -> None:
        super().__init__(refusal("train", name, expected, got))
        self.name, self.expected, self.got = name, expected, got


@dataclass(frozen=True)
class Settings:
    """What determines a training run; ``total`` counts its steps, including those left out."""

    cell: str = "lstm"
    layers: int = 1
    hidden: int = 256
    embedding: int = 64
    window: int = 128  # T, the steps of truncated back-propagation
    batch: int = 32  # N, streams side by side
    dropout: float = 0.0  # of h[t-1] in front of R, one mask per window
    learning_rate: float = 1e-2
    clip: float = 1.0  # the global norm of the gradients
    total: int = 850
    seed: int = 1
    type: str = "float32"  # of the recurrent layers; weights, moments and the loss are float32

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), type(field.default)
            is_large = kind is float and isinstance(value, int) and abs(value) > 2**53
            if not isinstance(value, _KINDS[kind]) or isinstance(value, bool) or is_large:
                expected = f"a value of type {kind.__name__}"
                raise SettingError(field.name, expected, describe(value))
        if self.cell not in DESCRIPTORS:
            raise SettingError("cell", "one of " + ", ".join(DESCRIPTORS), repr(self.cell))
        if self.type not in TYPES:
            raise SettingError("type", "one of " + ", ".join(TYPES), repr(self.type))
        for name in ("layers", "hidden", "embedding", "window", "batch", "total"):
            if getattr(self, name) < 1:
                raise SettingError(name, "at least 1", str(getattr(self, name)))
            if getattr(self, name) >= 2**53:
                raise SettingError(name, "below 2**53", "more")
        for name in ("learning_rate", "clip"):
            if not getattr(self, name) > 0:
                raise SettingError(name, "above 0", str(getattr(self, name)))
        if self.learning_rate == math.inf:
            raise SettingError("learning_rate", "a finite number", "inf")
        if self.seed < 0:
            raise SettingError("seed", "at least 0", str(self.seed))
        if self.seed >= 2**63:
            raise SettingError("seed", "below 2**63", str(self.seed))
        if not 0 <= self.dropout < 1:
            raise SettingError("dropout", "at least 0 and below 1", str(self.dropout))

    @property
    def definition(self) -> Cell:
        """The cell of the layers."""
        return _CELLS[self.cell]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def rate(self, step: int) -> float:
        """The learning rate of a step: a short rise, then half a cosine down to a tenth."""
        warm = max(self.total // 50, 1)
        if step < warm:
            return self.learning_rate * (step + 1) / warm
        part = min((step - warm) / max(self.total - warm, 1), 1.0)
        return self.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * part)))


@dataclass(frozen=True)
class Layer:
    """The parameters of one recurrent layer: W [G·H,I], R [G·H,H], b [G·H]."""

    input_weight: Tensor
    recurrent_weight: Tensor
    bias: Tensor


class Model:
    """The graph of a language model over an alphabet of this size. Its programs run on a device of
    :meth:`zstate.Graph.compile`. ``share``: which streams this process trains, if several
    processes train together."""

    def __init__(
        self,
        settings: Settings,
        characters: int,
        device: str | None = None,
        share: slice | None = None,
    ) -> None:
        self.settings, self.characters, self.device = settings, characters, device
        self._share = share
        self.graph = Graph()
        rng = np.random.default_rng(settings.seed)
        hidden, gates = settings.hidden, len(settings.definition.gates)
        bound = 1 / math.sqrt(hidden)

        def uniform(name: str, *shape: int) -> Tensor:
            value = rng.uniform(-bound, bound, shape).astype(np.float32)
            return self.graph.variable(value, name=name)

        first = rng.normal(size=(characters, settings.embedding)).astype(np.float32)
        self.embedding = self.graph.variable(first, name="embedding")
        self.layers = []
        for k in range(settings.layers):
            inputs = settings.embedding if k == 0 else hidden
            bias = np.zeros(gates * hidden, np.float32)
            if settings.cell == "lstm":
                bias[hidden : 2 * hidden] = 1  # remember, until there is a reason to forget
            self.layers.append(
                Layer(
                    uniform(f"layer{k}.input_weight", gates * hidden, inputs),
                    uniform(f"layer{k}.recurrent_weight", gates * hidden, hidden),
                    self.graph.variable(bias, name=f"layer{k}.bias"),
                )
            )
        self.projection = uniform("projection", hidden, characters)
        self.projection_bias = self.graph.variable(
            np.zeros(characters, np.float32), name="projection_bias"
        )

    @property
    def parameters(self) -> list[Tensor]:
        layers = [t for k in self.layers for t in (k.input_weight, k.recurrent_weight, k.bias)]
        return [self.embedding, *layers, self.projection, self.projection_bias]

    def per_state(self, make: Callable[[int, str], Tensor]) -> list[list[Tensor]]:
        """What ``make`` gives for the number of every layer and each state that it carries."""
        states = self.settings.definition.states
        return [[make(k, each.name) for each in states] for k in range(self.settings.layers)]

    def recurrent(
        self,
        k: int,
        x: Tensor,
        start: list[Tensor],
        mask: Tensor | None,
        *,
        projected: bool = False,
    ) -> dict[str, Tensor]:
        """Layer k over x [T,N,I], or [T,N,G·H] if ``projected``, from a state: results by name, in
        the type of the layers."""
        layer, cell = self.layers[k], self.settings.definition
        tensors: dict[str, Tensor | None] = {
            "recurrent_weight": layer.recurrent_weight,
            "mask": mask,
            **{state.initial: value for state, value in zip(cell.states, start, strict=True)},
        }
        if not projected:
            tensors |= {"input_weight": layer.input_weight, "bias": layer.bias}
        narrow = {n: None if t is None else self._narrow(t) for n, t in tensors.items()}
        descriptor = DESCRIPTORS[self.settings.cell]
        found = getattr(self.graph, cell.name)(self._narrow(x), descriptor=descriptor, **narrow)
        return {result_name(tensor): tensor for tensor in found}

    def _narrow(self, tensor: Tensor) -> Tensor:
        """In the type of the layers."""
        kind = self.settings.type
        return tensor if tensor.dtype == kind else self.graph.cast(tensor, kind)

    def _wide(self, tensor: Tensor) -> Tensor:
        """In the type of weights and losses."""
        return tensor if tensor.dtype == "float32" else self.graph.cast(tensor, "float32")

    def _looked_up(self, tokens: Tensor) -> tuple[Tensor, bool]:
        """The first layer's input for tokens [T,N], and whether it is projected: [T,N,G·H], not E.

        A character's row of W x + b is the same wherever it stands. Where there are more tokens
        than characters, projecting the table and looking rows up in the result is less work than
        projecting what was looked up; and so are their gradients.
        """
        g, first = self.graph, self.layers[0]
        steps, batch = (size or 0 for size in tokens.shape)
        if steps * batch <= self.characters:
            return g.gather(self.embedding, tokens), False
        table = self.embedding @ g.transpose(first.input_weight, [1, 0]) + first.bias  # [V,G·H]
        return g.gather(self._narrow(table), tokens), True

    def forward(
        self,
        tokens: Tensor,
        starts: list[list[Tensor]],
        masks: list[Tensor | None] | None = None,
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """Logits [T·N,V] of tokens [T,N] from states [N,H] of every layer, and the states after."""
        g, hidden = self.graph, self.settings.hidden
        x, projected = self._looked_up(tokens)
        steps, batch = (size or 0 for size in tokens.shape)
        ends = []
        for k, (start, mask) in enumerate(zip(starts, masks or [None] * len(starts), strict=True)):
            found = self.recurrent(k, x, start, mask, projected=projected and k == 0)
            x = found["state"]
            states = [found[each.name] for each in self.settings.definition.states]
            last = [g.slice_tensor(each, 0, steps - 1, 1) for each in states]
            ends.append([self._wide(g.reshape(each, (batch, hidden))) for each in last])
        rows = g.reshape(x, (steps * batch, hidden))
        return self._wide(rows @ self._narrow(self.projection)) + self.projection_bias, ends

    def _carried(
        self, name: str, tokens: Tensor, keep: Tensor, masks: list[Tensor | None] | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits [T·N,V] of tokens [T,N] from variables, and the assigns that carry these on."""
        g, shape = self.graph, (tokens.shape[1] or 0, self.settings.hidden)
        carries = self.per_state(
            lambda k, part: g.variable(0.0, shape=shape, name=f"{name}{k}.{part}")
        )
        starts = [[variable * keep for variable in variables] for variables in carries]
        logits, ends = self.forward(tokens, starts, masks)
        pairs = zip(chain(*carries), chain(*ends), strict=True)
        return logits, [g.assign(variable, end) for variable, end in pairs]

    def _inputs(self, name: str, steps: int, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        g = self.graph
        tokens = g.placeholder(shape=(steps, batch), dtype="int32", name=f"{name}.tokens")
        targets = g.placeholder(shape=(steps, batch), dtype="int32", name=f"{name}.targets")
        keep = g.placeholder(shape=(), dtype="float32", name=f"{name}.keep")
        return tokens, targets, keep

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        g = self.graph
        rows = logits.shape[0] or 0
        labels = g.one_hot(g.reshape(targets, (rows,)), self.characters)
        return g.soft_max_cross_entropy(logits, labels, axis=-1, reduction="mean")

    def training_program(self) -> Executable:
        """[tokens [T,N], targets [T,N], keep [], learning rate []] -> [loss, gradient norm].

        ``keep`` is 1, or 0 to begin with a state of zeros.
        """
        g, s, own = self.graph, self.settings, self._share
        batch = s.batch if own is None else own.stop - own.start
        tokens, targets, keep = self._inputs("train", s.window, batch)
        rate = g.placeholder(shape=(), dtype="float32", name="train.learning_rate")
        effects: list[Tensor] = []
        masks: list[Tensor | None] = [None] * s.layers
        if s.dropout:
            generator = g.random_philox_state(seed=s.seed, name="dropout.state")
            after, ones = generator, g.constant(1.0, shape=(1, s.batch, s.hidden))
            for k in range(s.layers):
                mask, after = g.dropout(ones, s.dropout, after)
                masks[k] = mask if own is None else g.slice_tensor(mask, 1, own.start, batch)
            effects.append(g.assign(generator, after))
        logits, assigns = self._carried("train", tokens, keep, masks)
        loss = self._loss(logits, targets)
        effects += assigns
        scaling = _LossScale(g) if s.type == "float16" else None
        scaled = loss if scaling is None else loss * scaling.scale
        gradients = g.gradients(of=scaled, with_respect_to=self.parameters)
        if own is not None:  # their means are those of the whole batch, as all shares are equal
            loss, *means = g.mean_over_processes([loss, *gradients.values()])
            gradients = dict(zip(gradients, means, strict=True))
        squares = [g.reshape(g.reduction_sum(g.square(d)), ()) for d in gradients.values()]
        norm = g.square_root(sum(squares[1:], squares[0]))
        allowed = None
        if scaling is not None:
            norm = norm / scaling.scale
            allowed = g.is_finite(norm)
            effects += scaling.assigns(allowed)
        scale = g.minimum(s.clip / (norm + 1e-6), 1.0)
        if scaling is not None:
            scale = scale / scaling.scale
        step = g.variable(0.0, dtype="float64", name="step")
        effects += [g.assign(step, step + 1.0), *self._adam(gradients, scale, rate, allowed)]
        return self._compiled([tokens, targets, keep, rate], [loss, norm], effects)

    def _compiled(
        self, feeds: list[Tensor], targets: list[Tensor], operations: list[Tensor]
    ) -> Executable:
        return self.graph.compile(
            feeds={t: (t.shape, t.dtype) for t in feeds},  # type: ignore[misc]
            targets=targets,
            operations=operations,
            device=self.device,
        )

    def _adam(
        self,
        gradients: dict[Tensor, Tensor],
        scale: Tensor,
        rate: Tensor,
        allowed: Tensor | None,
    ) -> list[Tensor]:
        """One step for every parameter, if there is one: only where ``allowed`` holds."""
        g = self.graph

        def kept(variable: Tensor, value: Tensor) -> Tensor:
            chosen = value if allowed is None else g.select(allowed, value, variable)
            return g.assign(variable, chosen)

        powers = []
        effects = []
        for name, beta in (("beta1", _BETA1), ("beta2", _BETA2)):
            variable = g.variable(1.0, name=f"adam.{name}_power")
            powers.append(variable * beta)
            effects.append(kept(variable, powers[-1]))
        # g.adam adds epsilon to the root of the uncorrected velocity; as published, it is added to
        # that of the corrected one. In large layers gradients are that small.
        epsilon = g.square_root(1.0 - powers[1]) * _EPSILON
        for parameter, gradient in gradients.items():
            zeros = np.zeros([size or 0 for size in parameter.shape], np.float32)
            moments = [g.variable(zeros, name=f"adam.{parameter.name}.{k}") for k in ("m", "v")]
            found = g.adam(
                learning_rate=rate,
                beta1=_BETA1,
                beta2=_BETA2,
                epsilon=epsilon,
                beta1_power=powers[0],
                beta2_power=powers[1],
                values=parameter,
                momentum=moments[0],
                velocity=moments[1],
                gradient=gradient * scale,
            )
            pairs = zip([parameter, *moments], found, strict=True)
            effects += [kept(variable, value) for variable, value in pairs]
        return effects

    def validation_program(self, steps: int, batch: int) -> Executable:
        """[tokens [T,N], targets [T,N], keep []] -> [loss]."""
        tokens, targets, keep = self._inputs("valid", steps, batch)
        logits, assigns = self._carried("valid", tokens, keep)
        return self._compiled([tokens, targets, keep], [self._loss(logits, targets)], assigns)

    def sampling_program(self) -> Executable:
        """[token [1,1], keep []] -> [logits [1,V]]."""
        g = self.graph
        token = g.placeholder(shape=(1, 1), dtype="int32", name="sample.token")
        keep = g.placeholder(shape=(), dtype="float32", name="sample.keep")
        logits, assigns = self._carried("sample", token, keep)
        return self._compiled([token, keep], [logits], assigns)

    def generator_program(self, steps: int) -> Executable:
        """[characters [T,1], states [1,H]…] -> [logits [T,V], new states [1,H]…], for export.

        The states are fed and returned, since not every format keeps variables: "state0" and for an
        LSTM "cell0", then those of the next layer; what "state0" becomes is "new_state0".
        """
        g, shape = self.graph, (1, self.settings.hidden)
        tokens = g.placeholder(shape=(steps, 1), dtype="int32", name="characters")
        starts = self.per_state(lambda k, part: g.placeholder(shape=shape, name=f"{part}{k}"))
        logits, ends = self.forward(tokens, starts)
        targets = [g.identity(logits, name="logits")]
        for start, end in zip(chain(*starts), chain(*ends), strict=True):
            targets.append(g.identity(end, name=f"new_{start.name}"))
        return self._compiled([tokens, *chain(*starts)], targets, [])

    def stepping_program(self) -> Executable:
        """[character [1,1]] -> [logits [1,V]] from states of zeros, for C, which carries them."""
        g = self.graph
        character = g.placeholder(shape=(1, 1), dtype="int32", name="character")
        zeros = g.constant(0.0, shape=(1, self.settings.hidden))
        logits, _ = self.forward(character, self.per_state(lambda k, part: zeros))
        return self._compiled([character], [g.identity(logits, name="logits")], [])


class _LossScale:
    """The factor of the loss, and for how many steps it has not changed."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.scale = graph.variable(_FIRST_SCALE, name="loss_scale")
        self._steps = graph.variable(0.0, name="loss_scale.steps")

    def assigns(self, is_finite: Tensor) -> list[Tensor]:
        """Halve it after gradients that are not finite; double it after enough finite ones."""
        g, after = self._graph, self._steps + 1.0
        doubles = g.greater_than_or_equal_to(after, float(_STEPS_TO_DOUBLE))
        larger = g.select(doubles, g.minimum(self.scale * 2.0, _LARGEST_SCALE), self.scale)
        smaller = g.maximum(self.scale * 0.5, 1.0)
        stays = g.logical_and(is_finite, g.logical_not(doubles))
        return [
            g.assign(self.scale, g.select(is_finite, larger, smaller)),
            g.assign(self._steps, g.select(stays, after, 0.0)),
        ]
