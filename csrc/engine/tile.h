// The register-blocked kernel of every product: a few rows of A times a panel of B that is `Vectors`
// registers wide.
//
// Every element of the result is summed over k in the same order, whatever the tile, so the bits do not
// depend on how the work is shared.
#pragma once

#include "engine/octet_tile.h"

namespace ZS_NAMESPACE {

// The most rows a tile of `vectors` registers' width can have without spilling: registers for its sums, for a
// row of B and, multiplying by lanes, for as many of A as it has rows.
constexpr int tile_rows(int vectors) {
#if defined(ZS_MULTIPLIES_OCTETS)
  return vectors > 2 ? 4 : 8;  // pairs of rows: batches of most sizes then have no odd one
#else
  const int registers = kRegisters == 32 ? 24 : 12;
  const int rows = kMultipliesByLane ? (kRegisters - vectors) / (vectors + 1) : registers / vectors;
  return rows > 8 ? 8 : rows;
#endif
}

// The panel of the large products: 4 registers wide.
inline constexpr int kPanelVectors = 4;
inline constexpr int kRows = tile_rows(kPanelVectors);
template <class R>
inline constexpr i64 kPanel = kPanelVectors * Simd<R>::lanes;

template <class E>
using LeftOf = typename Operand<E>::Left;

// What is kept of a row of A until it is multiplied: its values, if it is quantised only then.
template <class E, bool Quantised = (Operand<E>::kTail > 0)>
struct Held {
  using Type = LeftOf<E>;
};
template <class E>
struct Held<E, true> {
  using Type = typename Operand<E>::Real;
};
template <class E>
using HeldOf = typename Held<E>::Type;

// Adds the products of as many values of k as a register has lanes.
template <class E, int Rows, int Vectors, bool Interleaved, class Sum = typename Operand<E>::Sum>
ZS_DEVICE void add_by_lanes(Sum (&sum)[Rows][Vectors], const LeftOf<E>* a, i64 lda, const E* b, i64 ldb) {
  using Op = Operand<E>;
  constexpr int L = Op::L;
  typename Op::Register rows[Rows];
  if constexpr (!Interleaved)
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) rows[r] = Op::load(a + r * lda);
  const auto add = [&]<int Q>() {
    typename Op::Register bv[Vectors];
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) bv[v] = Op::load(b + Q * ldb + v * L);
    const auto add_row = [&]<int Row>() {
      if constexpr (Row < Rows) {
        // Interleaved, a register has the values of L rows. The last one may reach beyond them.
        if constexpr (Interleaved && Row % L == 0) rows[Row / L] = Op::load(a + Q * Rows + Row);
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v)
          sum[Row][v] = Op::template add_lane_product<Interleaved ? Row % L : Q>(
              sum[Row][v], rows[Interleaved ? Row / L : Row], bv[v]);
      }
    };
    add_row.template operator()<0>(), add_row.template operator()<1>();
    add_row.template operator()<2>(), add_row.template operator()<3>();
    add_row.template operator()<4>(), add_row.template operator()<5>();
    add_row.template operator()<6>(), add_row.template operator()<7>();
  };
  add.template operator()<0>(), add.template operator()<1>();
  if constexpr (L == 4) add.template operator()<2>(), add.template operator()<3>();
}

// c[r][j] (+)= sum over k of a(r,k)·b[k][j]. Prefetches what is named `ahead`. A is read as a[r·lda + k], or,
// Interleaved, as a[k·Rows + r]. Chains > 1 splits k over that many sums, which one row alone needs to keep
// the multipliers busy. K counts elements. An element of A with two terms has the second one half a row
// further on.
template <class E, int Rows, int Vectors, int Chains, bool Interleaved, class R = typename Operand<E>::Real>
  requires(!kMultipliesOctets<E>)
void tile_product(i64 K, const LeftOf<E>* a, i64 lda, const E* b, i64 ldb, R* c, i64 ldc, bool accumulate,
                  Ahead ahead) {
  using Op = Operand<E>;
  using V = Vec<R>;
  constexpr bool kPrefetches = Rows > 1 && Chains == 1 && !Interleaved && !kMultipliesByLane;
  const char* next = ahead.at ? ahead.at : reinterpret_cast<const char*>(b);
  using Sum = typename Op::Sum;
  constexpr int L = Op::L;
  Sum sum[Chains][Rows][Vectors];
#pragma GCC unroll 8
  for (int q = 0; q < Chains; ++q)
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sum[q][r][v] = Sum{};
  // The sums are added to c at the end, and c may not be in a cache: prefetch it.
  if (accumulate)
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) __builtin_prefetch(c + r * ldc + v * L, 1);

  i64 k = 0;
  if constexpr (kMultipliesByLane && Chains == 1) {
    for (; k + L <= K; k += L, b += L * ldb)
#pragma GCC unroll 2
      for (int term = 0; term < Op::kTerms; ++term)
        add_by_lanes<E, Rows, Vectors, Interleaved>(
            sum[0], a + (Interleaved ? k * Rows : k + term * (lda / 2)), lda, b, ldb);
  }
  for (; k + Chains <= K; k += Chains) {
    if constexpr (kPrefetches) __builtin_prefetch(next, 0, 2), next += ahead.step;
#pragma GCC unroll 8
    for (int q = 0; q < Chains; ++q) {
      typename Op::Register bv[Vectors];
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) bv[v] = Op::load(b + v * L);
      b += ldb;
#pragma GCC unroll 2
      for (int term = 0; term < Op::kTerms; ++term)
#pragma GCC unroll 8
        for (int r = 0; r < Rows; ++r) {
          const i64 at = Interleaved ? (k + q) * Rows + r : r * lda + k + q + term * (lda / 2);
          const auto av = Op::splat(a + at);
#pragma GCC unroll 8
          for (int v = 0; v < Vectors; ++v) sum[q][r][v] = Op::add_product(sum[q][r][v], av, bv[v]);
        }
    }
  }
  if constexpr (Chains > 1) {
    for (; k < K; ++k, b += ldb)
#pragma GCC unroll 2
      for (int term = 0; term < Op::kTerms; ++term)
#pragma GCC unroll 8
        for (int v = 0; v < Vectors; ++v)
          sum[0][0][v] =
              Op::add_product(sum[0][0][v], Op::splat(a + k + term * (lda / 2)), Op::load(b + v * L));
#pragma GCC unroll 8
    for (int q = 1; q < Chains; ++q)
#pragma GCC unroll 8
      for (int v = 0; v < Vectors; ++v) sum[0][0][v] += sum[q][0][v];
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < Vectors; ++v) {
      R* out = c + r * ldc + v * L;
      const V value = Op::finished(sum[0][r][v], a + r * lda + K, b, ldb, v * L);
      Io<R>::store(out, accumulate ? Io<R>::load(out) + value : value);
    }
}

template <class E>
using TileProduct = void (*)(i64, const LeftOf<E>*, i64, const E*, i64, typename Operand<E>::Real*, i64, bool,
                             Ahead);

// The kernel for `rows` rows.
template <class E, int Vectors, bool Interleaved>
TileProduct<E> tile_product_for(int rows) {
  constexpr int most = tile_rows(Vectors);
#define ZS_ROWS(n) (n <= most ? n : 1)
  static constexpr TileProduct<E> kernels[] = {
      nullptr,
      tile_product<E, 1, Vectors, 1, Interleaved>,
      tile_product<E, ZS_ROWS(2), Vectors, 1, Interleaved>,
      tile_product<E, ZS_ROWS(3), Vectors, 1, Interleaved>,
      tile_product<E, ZS_ROWS(4), Vectors, 1, Interleaved>,
      tile_product<E, ZS_ROWS(5), Vectors, 1, Interleaved>,
      tile_product<E, ZS_ROWS(6), Vectors, 1, Interleaved>,
      tile_product<E, ZS_ROWS(7), Vectors, 1, Interleaved>,
      tile_product<E, ZS_ROWS(8), Vectors, 1, Interleaved>,
  };
#undef ZS_ROWS
  return kernels[rows];
}
template <class E, bool Interleaved>
TileProduct<E> tile_product_for(int vectors, int rows) {
  switch (vectors) {
    case 1:
      return tile_product_for<E, 1, Interleaved>(rows);
    case 2:
      return tile_product_for<E, 2, Interleaved>(rows);
    case 3:
      return tile_product_for<E, 3, Interleaved>(rows);
    default:
      return tile_product_for<E, 4, Interleaved>(rows);
  }
}

// Lanes of the register column that starts at `column` of `columns`; may be negative beyond the end.
template <class R>
int lanes_at(i64 column, i64 columns) {
  return static_cast<int>(max_of(0, min_of(Simd<R>::lanes, columns - column)));
}

}  // namespace ZS_NAMESPACE
