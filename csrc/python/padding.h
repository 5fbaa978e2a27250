// Rows of a batch of sequences, taken out and put back: between padded sequences and packed ones.
#pragma once

#include <nanobind/nanobind.h>

namespace zstate {

// pack_rows(array, rows) -> [M,F]: those rows of [T,N,F], which are numbered through its first two axes.
// unpack_rows(array, rows, T, N) -> [T,N,F]: the rows of [M,F] in those places, zeros in all others.
// `rows`: int64 [M], contiguous; the arrays' last axis is contiguous, whatever their type.
void bind_padding(nanobind::module_& m);

}  // namespace zstate
