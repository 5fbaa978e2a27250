// Known calls on PyTorch's tensors, whose memory goes in and comes out as it is.
//
// PyTorch is not linked against: its tensors are read through DLPack capsules, which its own functions,
// handed over by use_torch(), make.
#pragma once

#include <nanobind/nanobind.h>

namespace zstate {

// use_torch(types, to_dlpack, from_numpy): how to know plain tensors, to read one, and to make one.
// repeat_tensors(operation, tensors, descriptor): repeat() on a tuple of plain CPU tensors, None where one is
// not given; its results are tensors. None if no plan is remembered for such a call.
void bind_tensors(nanobind::module_& m);

}  // namespace zstate
