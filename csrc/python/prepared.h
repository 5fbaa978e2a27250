// Layers for inference on NumPy arrays: weights packed once, several layers in one call, streams of steps.
#pragma once

#include <nanobind/nanobind.h>

namespace zstate {

// Adds the classes Stack and Stream to the module.
//
// Stack(*, weights, dtype, layers)
//   weights  "float32", "bfloat16" or "int8"
//   dtype    NumPy's float32
//   layers   for each (cell, numbers, I, H, D, reverse, has_input_weight, results, arrays):
//              cell, numbers  the cell's forward programs (src/zstate/backends/encoding.py)
//              results        for each state whether the programs give it at every step; the first does
//              arrays         by the engine's names (named_arrays.h): recurrent_weight and input_weight, int8
//                             with recurrent_scale and input_scale [D·G·H] beside them, bias, own.k; all
//                             contiguous, float32 but for these
//            The input of a layer is the first state of the one before it.
//   kinds    the named tuple of each layer's states
//   single   whether there is one layer that is no list
// stack.call(x, states) -> (output, states by their names), of x [T,N,I] and states as a call gives them, for
//   layers whose states begin at zero. None where x or the states are no plain contiguous arrays.
// stack.run(x, initial, masks, batch_sizes) -> (output, last): x [T,N,I], or [rows,I] with the batch sizes
//   of sequences of different lengths, longest first. initial: for each layer a tuple of states [N,D·H],
//   None for zeros. masks: for each layer an array [T,N,D·H] of any strides, or None.
//   last: as `initial`. T and N are at least 1.
// Stream(stack, batch, initial, masks): steps of `batch` rows; the masks are [1,N,D·H].
//   step(x) -> [N,H], or None where x is no plain contiguous array [N,I] of the stack's type.
//   run(x, masks) -> [T,N,H]; states() -> as `last`; set_states(initial).
void bind_prepared(nanobind::module_& m);

}  // namespace zstate
