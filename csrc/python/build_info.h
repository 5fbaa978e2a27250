// build_info() -> dict: the compiler, flags, instruction sets and options that the module was built with.
#pragma once

#include <nanobind/nanobind.h>

namespace zstate {

void bind_build_info(nanobind::module_& m);

}  // namespace zstate
