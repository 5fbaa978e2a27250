// A plain matrix product for a graph's other operations: the same kernels and the same threads, so that no
// second pool of threads spins on the cores that a scan needs.
#pragma once

#include "engine/operation.h"

namespace ZS_NAMESPACE {

using zstate::Product;

// C = A·B with C row-major and each of A and B row-major or transposed, but not A transposed with B
// transposed.
template <class R>
struct ProductOp {
  using E = typename Elements<R>::Product;
  const Product& p;
  int threads = 1;
  E *packed = nullptr, *scratch = nullptr;
  R* result = nullptr;  // of the swapped product

  explicit ProductOp(const Product& product) : p(product) {}

  const R* a(i64 row, i64 column) const {
    return static_cast<const R*>(p.a) + row * p.a_strides[0] + column * p.a_strides[1];
  }
  const R* b(i64 row, i64 column) const {
    return static_cast<const R*>(p.b) + row * p.b_strides[0] + column * p.b_strides[1];
  }
  bool a_transposed() const { return p.a_strides[1] != 1; }
  // A^T·B can be computed as the transpose of B^T·A: then the columns of A make the panels, if they fill them
  // better.
  bool swapped() const {
    const i64 L = Simd<R>::lanes;
    return a_transposed() && round_up(p.columns, kRows) * round_up(p.rows, L) <
                                 round_up(p.rows, kRows) * round_up(p.columns, L);
  }

  void lay_out(Arena& arena) {
    const i64 wide = swapped() ? p.rows : p.columns;
    packed = arena.take<E>(
        a_transposed() ? zstate::size_product(2 * min_of(kOuterDepth, p.length), round_up(wide, kPanel<R>))
                       : panels_size<E>(p.columns, p.length));
    scratch = arena.take<E>(threads, a_transposed() ? kOuterScratch<R> : rows_scratch<E>(0));
    if (swapped()) result = arena.take<R>(p.rows, p.columns);
  }

  // C[m, n] = sum over k of left(k)[m]·right(k)[n]; both give a contiguous row.
  template <class Left, class Right>
  void multiply_transposed(const Team& team, i64 m, i64 n, R* c, const Left& left, const Right& right) {
    const OuterPart<R> part{n, c, n};
    const OuterBand<R> band{0, m, 1};
    const auto row_a = [&](int, i64 k, i64 first) { return left(k) + first; };
    const auto row_b = [&](int, i64 k) { return RowReader<R>{right(k)}; };
    multiply_outer(team, p.length, &band, 1, &part, 1, row_a, row_b, packed,
                   scratch + team.rank * kOuterScratch<R>);
  }

  void run(const Team& team) {
    R* c = static_cast<R*>(p.c);
    const auto a_column = [&](i64 k) { return a(0, k); };
    const auto b_row = [&](i64 k) { return b(k, 0); };
    if (swapped()) {
      mark(Path::product_swapped);
      multiply_transposed(team, p.columns, p.rows, result, b_row, a_column);
      team.barrier();
      const Range mine = share(team, p.rows);
      for (i64 i = mine.begin; i < mine.end; ++i)
        for (i64 j = 0; j < p.columns; ++j) c[i * p.columns + j] = result[j * p.rows + i];
      return;
    }
    if (a_transposed()) {
      mark(Path::product_of_transposed_left);
      return multiply_transposed(team, p.rows, p.columns, c, a_column, b_row);
    }
    mark(p.b_strides[1] == 1 ? Path::product_of_straight_operands : Path::product_of_transposed_right);
    if (p.b_strides[1] == 1)
      pack_panels_straight(team, packed, b(0, 0), p.b_strides[0], p.columns, p.length);
    else
      pack_panels_transposed(team, packed, b(0, 0), p.b_strides[1], p.columns, p.length);
    team.barrier();
    const auto load = [&](i64 row) { return reader(a(row, 0)); };
    const auto c_row = [&](i64 row) { return c + row * p.columns; };
    multiply_rows(team, p.rows, p.length, p.columns, load, packed, c_row, false,
                  scratch + team.rank * rows_scratch<E>(0));
  }
};

}  // namespace ZS_NAMESPACE
