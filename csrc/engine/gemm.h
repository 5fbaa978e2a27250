// Large matrix products: two drivers that share the work of a team. What a member computes does not depend on
// how many there are, nor does its order of summation.
#pragma once

#include "engine/packing.h"

namespace ZS_NAMESPACE {

// ---- C = A·B with B packed whole ----

inline constexpr i64 kRowsBlock = 96;  // rows of A packed at a time
template <class R>
inline constexpr i64 kDepthBlock = sizeof(R) == 4 ? 384 : 256;
// A row of A that is quantised has one scale, so that it is multiplied whole.
template <class E>
inline constexpr bool kWholeRows = Operand<E>::kTail > 0;
template <class E>
i64 rows_scratch(i64 length) {
  using R = typename Operand<E>::Real;
  constexpr i64 usual = kRowsBlock * (kDepthBlock<R> + kDepthBlock<R> / 3) * Operand<E>::kTerms;
  return kWholeRows<E> ? max_of(usual, kRows * (depth_of<E>(length) + 1)) : usual;
}

// Cuts `n` into equal parts of at most 4/3 of `most`.
inline i64 even_block(i64 n, i64 most) {
  return n <= most + most / 3 ? max_of(n, 1) : ceil_div(n, ceil_div(n, most));
}

// Writes a tile whose rows may lie anywhere and whose last columns may be missing.
template <class R, class RowOf>
void store_tile(const R* tile, const RowOf& row_of, int rows, i64 column, i64 columns, bool accumulate) {
  for (int r = 0; r < rows; ++r) {
    R* out = row_of(r) + column;
    for (i64 j = 0; j < kPanel<R>; j += Simd<R>::lanes) {
      const int n = lanes_at<R>(column + j, columns);
      if (n == 0) break;
      const Vec<R> v = Io<R>::load(tile + r * kPanel<R> + j);
      Io<R>::store_n(out + j, accumulate ? Io<R>::load_n(out + j, n) + v : v, n);
    }
  }
}

// Registers of a panel with `columns` columns left; the last one need not be full.
template <class R>
int panel_vectors(i64 columns) {
  return static_cast<int>(min_of(kPanelVectors, ceil_div(columns, Simd<R>::lanes)));
}

// The step between neighbours of `rows[0..count)`, or 0 if they are not evenly spaced.
template <class R>
i64 even_step(R* const* rows, int count) {
  const i64 step = count > 1 ? rows[1] - rows[0] : 1;
  for (int r = 2; r < count; ++r)
    if (rows[r] - rows[r - 1] != step) return 0;
  return step;
}

// One block of at most kRowsBlock rows times every panel in [panels.begin, panels.end). The rows c[0..rows)
// lie anywhere: sequences of different lengths.
template <class E, class R>
void multiply_block(const Team& team, const LeftOf<E>* a, i64 lda, R* const* c, i64 rows, const E* b, i64 K,
                    i64 k0, i64 depth, Range panels, i64 columns, bool accumulate) {
  constexpr i64 P = kPanel<R>;
  const i64 tiles = ceil_div(rows, kRows);
  const bool slow = K * columns * static_cast<i64>(sizeof(E)) > kSlowBytes;
  if (slow) mark(Path::product_prefetched);
  i64 step[kRowsBlock];  // of each tile's rows
  for (i64 t = 0; t < tiles; ++t) {
    const i64 r = rows * t / tiles;
    step[t] = even_step(c + r, static_cast<int>(rows * (t + 1) / tiles - r));
    mark(step[t] ? Path::tile_in_even_rows : Path::tile_in_scattered_rows);
  }
  for (i64 p = panels.begin; p < panels.end && !team.stopped(); ++p) {
    const E* panel = b + (p * (K + Operand<E>::kTail) + k0) * P;
    if ((p + 1) * P > columns) mark(Path::tile_of_narrow_panel);
    for (i64 t = 0; t < tiles; ++t) {
      const i64 r = rows * t / tiles, end = rows * (t + 1) / tiles;
      const int n = static_cast<int>(end - r);
      const auto product = tile_product_for<E, false>(panel_vectors<R>(columns - p * P), n);
      Ahead ahead;
      if (slow && p + 1 < panels.end)
        ahead = part_ahead(panel + (K + Operand<E>::kTail) * P, depth * P, t, tiles, depth);
      if (step[t] && (p + 1) * P <= columns) {
        product(depth, a + r * lda, lda, panel, P, c[r] + p * P, step[t], accumulate, ahead);
      } else {
        alignas(64) R tile[kRows * P];
        product(depth, a + r * lda, lda, panel, P, tile, P, false, ahead);
        store_tile(tile, [&](i64 q) { return c[r + q]; }, n, p * P, columns, accumulate);
      }
    }
  }
}

// The part of such a product in some rows and some ranges of panels.
template <class E, class Load, class RowOf>
void multiply_part(const Team& team, Range mine, const Range* ranges, int range_count, i64 length,
                   i64 columns, const Load& load, const E* b, const RowOf& c_row, bool accumulate,
                   LeftOf<E>* scratch) {
  using R = typename Operand<E>::Real;
  const i64 K = depth_of<E>(length);
  const i64 depth = kWholeRows<E> ? K : even_block(K, kDepthBlock<R>);
  const i64 lda = depth * Operand<E>::kTerms + (kWholeRows<E> ? 1 : 0);
  i64 block = even_block(mine.end - mine.begin, kRowsBlock * 3 / 4);
  if constexpr (kWholeRows<E>) block = min_of(block, rows_scratch<E>(length) / lda);
  if (depth < K) mark(Path::rows_in_several_depths);
  for (i64 row = mine.begin; row < mine.end; row += block) {
    const i64 n = min_of(block, mine.end - row);
    R* c[kRowsBlock];
    for (i64 r = 0; r < n; ++r) c[r] = c_row(row + r);
    for (i64 k0 = 0; k0 < K || k0 == 0; k0 += depth) {
      const i64 d = min_of(depth, K - k0);
      for (i64 r = 0; r < n; ++r) write_elements<E>(scratch + r * lda, lda, k0, d, length, load(row + r));
      for (int i = 0; i < range_count; ++i)
        multiply_block(team, scratch, lda, c, n, b, K, k0, d, ranges[i], columns, accumulate || k0 > 0);
    }
  }
}

// C[rows, columns] (+)= A·B. load(row) reads a row of A; c_row(row) is where one of C starts. B is packed
// in panels over `length` values of k. Ends without a barrier.
template <class E, class Load, class RowOf>
void multiply_rows(const Team& team, i64 rows, i64 length, i64 columns, const Load& load, const E* b,
                   const RowOf& c_row, bool accumulate, LeftOf<E>* scratch) {
  const i64 panels = ceil_div(columns, kPanel<typename Operand<E>::Real>);
  const bool by_rows = rows >= 2 * kRows * team.size;
  mark(by_rows ? Path::rows_shared_by_rows : Path::rows_shared_by_panels);
  const Range mine = by_rows ? share(team, rows) : Range{0, rows};
  const Range my_panels = by_rows ? Range{0, panels} : share(team, panels);
  multiply_part(team, mine, &my_panels, 1, length, columns, load, b, c_row, accumulate, scratch);
}

// ---- C = A^T·B summed over many rows k: the gradients of weights ----

inline constexpr i64 kOuterDepth = 256;  // rows k packed at a time
inline constexpr i64 kOuterTiles = 32;   // packed at a time, of kRows rows of C each
inline constexpr i64 kOuterRows = kOuterTiles * kRows;
// How far apart packed tiles lie: an odd number of cache lines, since a row of A goes to all of them.
template <class E>
constexpr i64 outer_tile(i64 depth) {
  constexpr i64 line = 64 / static_cast<i64>(sizeof(E));
  return (ceil_div(depth * kRows, line) | 1) * line;
}
template <class R>
inline constexpr i64 kOuterScratch = kOuterTiles * outer_tile<R>(kOuterDepth) + kOuterRows;

// One of the matrices B: its columns, and the C they go to.
template <class R>
struct OuterPart {
  i64 columns = 0;
  R* c = nullptr;
  i64 ldc = 0;
};
// Rows [begin, end) of C, which have an A of their own, for the parts whose bits are set; and, if wanted,
// what that A adds up to over k.
template <class R>
struct OuterBand {
  i64 begin = 0, end = 0;
  unsigned parts = 0;
  R* sums = nullptr;
  bool adds = false;  // to what another band of the same rows has left
};
template <class R>
i64 outer_panels(const OuterPart<R>* parts, int count) {
  i64 panels = 0;
  for (int i = 0; i < count; ++i) panels += ceil_div(parts[i].columns, kPanel<R>);
  return panels;
}

inline constexpr i64 kRowsAhead = 6;  // of A, which are prefetched

// Copies elements [0, depth) of m columns of A from row k0 on into tiles of kRows columns, and adds the rows
// to `sums` if given. row_a(k) is where a row of these columns starts; `row` has room for one.
template <class E, class RowA, class R>
void pack_outer_a(const RowA& row_a, i64 k0, i64 depth, i64 K, i64 m, E* dst, R* sums, R* row) {
  using Op = Operand<E>;
  constexpr int V = Op::kValues, L = Simd<R>::lanes;
  const R* last = nullptr;
  for (i64 k = 0; k < depth; ++k) {
    const R* from[V];
    for (int q = 0; q < V; ++q) {
      const i64 at = k0 + k * V + q;
      from[q] = at < K ? row_a(at) : nullptr;
      if (!from[q]) continue;
      // So few columns of each row are read that the hardware sees no pattern.
      const i64 ahead = last ? (from[q] - last) * kRowsAhead : 0;
      last = from[q];
      for (i64 i = 0; i < m; i += L) __builtin_prefetch(last + ahead + i);
      for (i64 i = 0; i < m && sums; ++i) sums[i] += last[i];
    }
    const R* elements = from[0];
    if constexpr (!Op::kPlain) {
      for (i64 i = 0; i < m; i += L) {
        const int n = lanes_at<R>(i, m);
        const auto load = [&](i64 q) { return from[q] ? Io<R>::load_n(from[q] + i, n) : Vec<R>{}; };
        Io<R>::store_n(row + i, Op::load_across(load, 0, V), n);
      }
      elements = row;
    }
    E* to = dst;
    i64 i = 0;
    for (; i + kRows <= m; i += kRows, to += outer_tile<E>(depth))
      std::memcpy(to + k * kRows, elements + i, sizeof(E) * kRows);
    const i64 rest = m - i;
    for (i64 j = 0; j < rest; ++j) std::memcpy(to + k * rest + j, elements + i + j, sizeof(E));
  }
}

// Rows [k0, k0 + depth) of every B in panels; every member packs some rows.
template <class E, class R, class RowB>
void pack_outer_b(const Team& team, i64 k0, i64 depth, i64 K, const OuterPart<R>* parts, int part_count,
                  const RowB& row_b, E* b) {
  using Op = Operand<E>;
  constexpr int V = Op::kValues, L = Simd<R>::lanes;
  constexpr i64 P = kPanel<R>;
  const Range mine = share(team, depth);
  for (i64 k = mine.begin; k < mine.end; ++k) {
    E* to = b + k * P;
    for (int i = 0; i < part_count; ++i) {
      decltype(row_b(0, 0)) rows[V];
      for (int q = 0; q < V && k0 + k * V + q < K; ++q) rows[q] = row_b(i, k0 + k * V + q);
      const i64 columns = round_up(parts[i].columns, P);
      for (i64 j = 0; j < columns; j += L) {
        const int lanes = lanes_at<R>(j, parts[i].columns);
        const auto load = [&](i64 at) { return lanes ? rows[at - k * V](j, lanes) : Vec<R>{}; };
        store_bits(to + j / P * depth * P + j % P, Op::load_across(load, k, K - k0));
      }
      to += columns * depth;
    }
  }
}

// Rows [m, m + rows) of C_part (+)= A^T·B_part, of packed A and B.
template <class E, class R>
void multiply_outer_block(const E* a, i64 depth, i64 m, i64 rows, const E* b, const OuterPart<R>& part,
                          bool accumulate) {
  constexpr i64 P = kPanel<R>;
  for (i64 j = 0; j < part.columns; j += P, b += depth * P)
    for (i64 r = 0; r < rows; r += kRows) {
      const int n = static_cast<int>(min_of(kRows, rows - r));
      const E* tile_a = a + r / kRows * outer_tile<E>(depth);
      const auto product = tile_product_for<E, true>(panel_vectors<R>(part.columns - j), n);
      R* c = part.c + (m + r) * part.ldc + j;
      if (j + P <= part.columns) {
        product(depth, tile_a, 0, b, P, c, part.ldc, accumulate, {});
      } else {
        alignas(64) R tile[kRows * P];
        product(depth, tile_a, 0, b, P, tile, P, false, {});
        const auto row_of = [&](i64 q) { return part.c + (m + r + q) * part.ldc; };
        store_tile(tile, row_of, n, j, part.columns, accumulate);
      }
    }
}

// A caller's function, called through a pointer, so that code that takes one is compiled once for all
// callers.
template <class... Arguments>
class Callback {
 public:
  template <class Function>
  explicit Callback(const Function& function)
      : function_(&function), call_([](const void* f, Arguments... arguments) {
          (*static_cast<const Function*>(f))(arguments...);
        }) {}
  void operator()(Arguments... arguments) const { call_(function_, arguments...); }

 private:
  const void* function_;
  void (*call_)(const void*, Arguments...);
};

// multiply_outer() with the packing given: pack_a(band, k0, depth, m, rows, sums) packs into `scratch`,
// pack_b(k0, depth, b) packs this member's share of a block.
template <class E, class R>
void multiply_outer_blocks(const Team& team, i64 K, const OuterBand<R>* bands, int band_count,
                           const OuterPart<R>* parts, int part_count,
                           const Callback<int, i64, i64, i64, i64, R*>& pack_a,
                           const Callback<i64, i64, E*>& pack_b, E* b_scratch, const E* scratch) {
  const i64 panels = outer_panels(parts, part_count);
  int half = 0;
  if (K > kOuterDepth) mark(Path::outer_in_several_depths);
  for (i64 k0 = 0; k0 < K || k0 == 0; k0 += kOuterDepth, half ^= 1) {
    const i64 depth = depth_of<E>(min_of(kOuterDepth, K - k0));
    E* b = b_scratch + half * panels * kPanel<R> * kOuterDepth;
    pack_b(k0, depth, b);
    team.barrier();  // two halves: nobody can be packing the one that somebody still reads
    for (int band = 0; band < band_count; ++band) {
      const auto [begin, end, has, sums, adds] = bands[band];
      // Members own whole tiles of rows, so that only the last tile of all is narrow.
      const Range tiles = share(team, ceil_div(end - begin, kRows));
      const i64 last = min_of(end, begin + tiles.end * kRows);
      for (i64 m = begin + tiles.begin * kRows; m < last && !team.stopped(); m += kOuterRows) {
        const i64 rows = min_of(kOuterRows, last - m);
        R* own = sums ? sums + (m - begin) : nullptr;
        if (own && k0 == 0) std::memset(own, 0, sizeof(R) * static_cast<std::size_t>(rows));
        pack_a(band, k0, depth, m, rows, own);
        const E* panel = b;
        for (int i = 0; i < part_count; ++i) {
          if (has >> i & 1) multiply_outer_block(scratch, depth, m, rows, panel, parts[i], adds || k0 > 0);
          panel += ceil_div(parts[i].columns, kPanel<R>) * kPanel<R> * depth;
        }
      }
    }
  }
}

// For every band and every part that it has: C_part[m, columns] = sum over k in [0, K) of A_band[k, m]·
// B_part[k, columns], and sums[m - begin] = sum of A_band[k, m]. row_a(band, k, m) is where columns m and
// up of a row start; row_b(part, k) reads a row: (column, lanes). `b_scratch` holds two blocks of kOuterDepth
// × all panels and is shared; `scratch` is this member's own. C must not be read before the next barrier.
template <class E, class R, class RowA, class RowB>
void multiply_outer(const Team& team, i64 K, const OuterBand<R>* bands, int band_count,
                    const OuterPart<R>* parts, int part_count, const RowA& row_a, const RowB& row_b,
                    E* b_scratch, E* scratch) {
  R* row = reinterpret_cast<R*>(scratch + kOuterTiles * outer_tile<E>(kOuterDepth));
  const auto pack_a = [&](int band, i64 k0, i64 depth, i64 m, i64 rows, R* sums) {
    const auto row_of = [&](i64 k) { return row_a(band, k, m); };
    pack_outer_a(row_of, k0, depth, K, rows, scratch, sums, row);
  };
  const auto pack_b = [&](i64 k0, i64 depth, E* b) {
    pack_outer_b(team, k0, depth, K, parts, part_count, row_b, b);
  };
  multiply_outer_blocks<E, R>(team, K, bands, band_count, parts, part_count,
                              Callback<int, i64, i64, i64, i64, R*>(pack_a), Callback<i64, i64, E*>(pack_b),
                              b_scratch, scratch);
}

}  // namespace ZS_NAMESPACE
