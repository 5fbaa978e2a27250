// A plan: one signature of an operation, ready to run on NumPy arrays of exactly that signature.
//
// It connects Python with an engine: it turns arrays into pointers and strides, copies what an engine
// cannot walk, and allocates the results.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "python/numpy.h"
#include "runtime/cell_tables.h"

namespace zstate {

namespace nb = nanobind;

// An axis-by-axis shape, as Python gave it.
using Shape = std::vector<std::int64_t>;

// Pointers and strides of an array that an engine can walk. `axes`: how many it is to have; axes of one
// element are put in front, or dropped from there, to make it so.
Array walk(PyArrayObject* array, int axes);

// One array of a plan: what Python calls it, its shape, and what the engine calls it (named_arrays.h).
struct NamedShape {
  std::string name;
  Shape shape;
  std::string called;
  int place = -1;  // among the engine's arrays
};

struct Signature {
  Problem problem;
  std::unique_ptr<CellTables> tables;  // what the problem's cell lies in
  bool gradient = false;
  nb::object dtype;                 // NumPy's type object: of every input and of every result
  nb::object result;                // the named tuple that a call returns
  std::vector<NamedShape> inputs;   // in the order of the call; no name: not given
  std::vector<NamedShape> results;  // in the order of the named tuple; no name: not wanted
  // What the problem points at where sequences have different lengths.
  std::vector<std::int64_t> starts, step_of;
};

class Plan {
 public:
  explicit Plan(Signature signature);
  Plan(const Plan&) = delete;  // its problem points into it
  Plan& operator=(const Plan&) = delete;

  // `values`: a tuple of arrays, None where the signature has none. Raises ValueError before anything is
  // computed if one of them is not as the signature says. The GIL is released while computing.
  nb::object run(nb::handle values) const;

  // Whether these are plain arrays of this signature.
  bool matches(nb::handle values) const;

 private:
  Signature s_;
};

}  // namespace zstate
