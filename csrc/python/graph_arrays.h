// The matrix product and the operations of engine/graph_ops.h on NumPy arrays. Each gives None for arrays
// that it does not serve: those that are not plain, contiguous and of one type float32 or float64, or that
// are empty. The caller then composes the result of NumPy's functions. The GIL is released while computing.
#pragma once

#include <nanobind/nanobind.h>

namespace zstate {

namespace nb = nanobind;

// a·b of two matrices of one type, float32 or float64; None for anything else, and for products so small that
// NumPy's own is the faster way.
nb::object product(nb::handle a, nb::handle b);

// source and labels [..., classes] -> (loss [...], soft_max [..., classes]).
nb::object soft_max_cross_entropy(nb::handle source, nb::handle labels);

// factor [..., 1] or a number, soft_max and labels [..., classes] -> [..., classes].
nb::object soft_max_cross_entropy_gradient(nb::handle factor, nb::handle soft_max, nb::handle labels);

// (values, momentum, velocity, gradient[, largest]) of one shape, (rate, beta1, 1 - beta1, beta2, 1 - beta2,
// epsilon) -> (values, momentum, velocity[, largest]).
nb::object adam(nb::tuple arrays, nb::tuple numbers);

// table [rows, ...], places int64 of any shape -> [*places, ...]. None also for a place that is not there.
nb::object take_rows(nb::handle table, nb::handle places);

// updates [count, ...], places int64 [count] -> [rows, ...], zeros plus each update at its place.
nb::object add_rows(nb::handle updates, nb::handle places, std::int64_t rows);

}  // namespace zstate
