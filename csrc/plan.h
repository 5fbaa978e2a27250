// A plan: one signature of an operation, ready to run on NumPy arrays of exactly that signature.
//
// It stands between Python and an engine: it turns arrays into pointers and strides, copies what an engine
// cannot walk, allocates the results. It also remembers plans by what a call looks like, so that a repeated
// call goes from Python to the engine in one step.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "engine.h"

namespace zstate {

namespace nb = nanobind;

// An axis-by-axis shape, as Python gave it.
using Shape = std::vector<std::int64_t>;

// One array of a plan: what Python calls it, and its shape.
struct Tensor {
  std::string name;
  Shape shape;
  int place = -1;  // among the engine's arrays
};

struct Signature {
  Problem problem;
  bool gradient = false;
  nb::object dtype;             // NumPy's type object: of every input and of every result
  nb::object result;            // the named tuple that a call returns
  std::vector<Tensor> inputs;   // in the order of the call; no name: not given
  std::vector<Tensor> results;  // in the order of the named tuple; no name: not wanted
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

// The result of the plan that is remembered for such a call, or None if there is none.
nb::object repeat(nb::handle operation, nb::handle values, nb::handle descriptor);
void remember(nb::handle operation, nb::handle values, nb::handle descriptor, nb::object plan);

// a·b of two matrices of one type, float32 or float64; None for anything else, and for products so small that
// NumPy's own is the faster way.
nb::object product(nb::handle a, nb::handle b);

// The engine that calls use; module.cpp chooses it.
const Engine& engine();

}  // namespace zstate
