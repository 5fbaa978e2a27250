// New NumPy arrays for results: a large one lives in a block that is kept for a later result once it is
// freed.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace zstate {

namespace nb = nanobind;

// An array with any contents, owner of its memory; `dtype`: NumPy's type object.
nb::object new_array(int rank, const std::int64_t* shape, nb::handle dtype);

// Makes NumPy's C interface and this usable; false with a Python error set.
bool import_numpy();

}  // namespace zstate
