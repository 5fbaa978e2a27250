// NumPy's C interface, shared by the files that use it; results.cpp imports it.
#pragma once

#include <Python.h>

// Memory handlers came with 1.22; the headers of some releases offer less unless told.
#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL zstate_numpy_api
#ifndef ZS_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace zstate {

inline PyArrayObject* as_array(PyObject* value) { return reinterpret_cast<PyArrayObject*>(value); }

// A copy of these if all are places in [0, most), where memory is read or written. The copy is what was
// checked: the array itself may be written to by another thread at any time.
inline std::optional<std::vector<std::int64_t>> copy_below(const std::int64_t* places, std::int64_t count,
                                                           std::int64_t most) {
  std::vector<std::int64_t> copy(places, places + count);
  bool inside = true;
  for (const std::int64_t place : copy) inside &= place >= 0 && place < most;
  if (!inside) return {};
  return copy;
}

}  // namespace zstate
