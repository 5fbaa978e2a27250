// NumPy's C interface, shared by the files that use it; results.cpp imports it.
#pragma once

#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL zstate_numpy_api
#ifndef ZS_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#include <cstdint>

namespace zstate {

inline PyArrayObject* as_array(PyObject* value) { return reinterpret_cast<PyArrayObject*>(value); }

// Whether all of these are places in [0, most): what is read or written there relies on it.
inline bool are_below(const std::int64_t* places, std::int64_t count, std::int64_t most) {
  bool inside = true;
  for (std::int64_t k = 0; k < count; ++k) inside &= places[k] >= 0 && places[k] < most;
  return inside;
}

}  // namespace zstate
