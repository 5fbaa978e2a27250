// Cached plans by call signature, so that a repeated call goes from Python to the engine in one step.
#pragma once

#include <nanobind/nanobind.h>

namespace zstate {

namespace nb = nanobind;

// The result of the plan that is remembered for such a call, or None if there is none.
nb::object repeat(nb::handle operation, nb::handle values, nb::handle descriptor);
// Caches this plan for calls like this one.
void remember(nb::handle operation, nb::handle values, nb::handle descriptor, nb::object plan);

}  // namespace zstate
