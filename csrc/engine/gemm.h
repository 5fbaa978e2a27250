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
inline constexpr i64 kOuterRows = 32 * kRows;
template <class R>
inline constexpr i64 kOuterScratch = kOuterDepth * kOuterRows + 2 * kOuterRows;

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

// Copies part of a row, and prefetches the same part of the row that lies `ahead` values further on: the
// parts are too short for the hardware to see a pattern.
template <class R>
ZS_DEVICE void copy_row_part(const R* from, R* to, i64 count, i64 ahead) {
  constexpr int L = Simd<R>::lanes;
  i64 i = 0;
  for (; i + L <= count; i += L) {
    __builtin_prefetch(from + ahead + i);
    Io<R>::store(to + i, Io<R>::load(from + i));
  }
  if (i < count)
    Io<R>::store_n(to + i, Io<R>::load_n(from + i, static_cast<int>(count - i)), static_cast<int>(count - i));
}

// Row k of A, columns [m0, m0+m), added to `sums` if given; zero from row K on.
template <class R, class LoadA>
ZS_DEVICE void load_outer_row(const LoadA& load_a, i64 k, i64 K, i64 m0, i64 m, R* row, R* sums) {
  if (k >= K) {
    std::memset(row, 0, sizeof(R) * static_cast<std::size_t>(m));
    return;
  }
  load_a(k, m0, m, row);
  if (sums)
    for (i64 i = 0; i < m; ++i) sums[i] += row[i];
}

// Copies elements [0, depth) of A from row k0 on × columns [m0, m0+m) into tiles of kRows columns. `row` has
// room for two rows.
template <class E, class LoadA, class R>
void pack_outer_a(const LoadA& load_a, i64 k0, i64 depth, i64 K, i64 m0, i64 m, E* dst, R* sums, R* row) {
  using Op = Operand<E>;
  for (i64 k = 0; k < depth; ++k) {
    for (int i = 0; i < Op::kValues; ++i)
      load_outer_row(load_a, k0 + k * Op::kValues + i, K, m0, m, row + i * kOuterRows, sums);
    if constexpr (!Op::kPlain)
      for (i64 i = 0; i < m; i += Op::L) {
        const int n = lanes_at<R>(i, m);
        const auto load = [&](i64 which) { return Io<R>::load_n(row + which * kOuterRows + i, n); };
        Io<R>::store_n(row + i, Op::load_across(load, 0, 2), n);
      }
    i64 i = 0;
    for (; i + kRows <= m; i += kRows) std::memcpy(dst + i * depth + k * kRows, row + i, sizeof(E) * kRows);
    const i64 rest = m - i;
    for (i64 j = 0; j < rest; ++j) std::memcpy(dst + i * depth + k * rest + j, row + i + j, sizeof(E));
  }
}

// Rows [k0, k0 + depth) of every B in panels; every member packs some rows.
template <class E, class R, class LoadB>
void pack_outer_b(const Team& team, i64 k0, i64 depth, i64 K, const OuterPart<R>* parts, int part_count,
                  const LoadB& load_b, E* b) {
  constexpr i64 P = kPanel<R>;
  const Range mine = share(team, depth);
  for (i64 k = mine.begin; k < mine.end; ++k) {
    i64 panel = 0;
    for (int i = 0; i < part_count; ++i) {
      const i64 part_panels = ceil_div(parts[i].columns, P);
      for (i64 j = 0; j < part_panels * P; j += Simd<R>::lanes) {
        const auto load = [&](i64 at) { return load_b(i, k0 + at, j, lanes_at<R>(j, parts[i].columns)); };
        store_bits(b + (panel + j / P) * depth * P + k * P + j % P, Operand<E>::load_across(load, k, K - k0));
      }
      panel += part_panels;
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
      const auto product = tile_product_for<E, true>(panel_vectors<R>(part.columns - j), n);
      R* c = part.c + (m + r) * part.ldc + j;
      if (j + P <= part.columns) {
        product(depth, a + r * depth, 0, b, P, c, part.ldc, accumulate, {});
      } else {
        alignas(64) R tile[kRows * P];
        product(depth, a + r * depth, 0, b, P, tile, P, false, {});
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
// B_part[k, columns], and sums[m - begin] = sum of A_band[k, m]. load_a(band, k, m0, m, dst) and load_b(part,
// k, column, lanes) read the operands. `b_scratch` holds two blocks of kOuterDepth × all panels and is
// shared; `scratch` is this member's own. C must not be read before the next barrier.
template <class E, class R, class LoadA, class LoadB>
void multiply_outer(const Team& team, i64 K, const OuterBand<R>* bands, int band_count,
                    const OuterPart<R>* parts, int part_count, const LoadA& load_a, const LoadB& load_b,
                    E* b_scratch, E* scratch) {
  R* row = reinterpret_cast<R*>(scratch + kOuterDepth * kOuterRows);
  const auto pack_a = [&](int band, i64 k0, i64 depth, i64 m, i64 rows, R* sums) {
    const auto load = [&](i64 k, i64 m0, i64 count, R* dst) { load_a(band, k, m0, count, dst); };
    pack_outer_a(load, k0, depth, K, m, rows, scratch, sums, row);
  };
  const auto pack_b = [&](i64 k0, i64 depth, E* b) {
    pack_outer_b(team, k0, depth, K, parts, part_count, load_b, b);
  };
  multiply_outer_blocks<E, R>(team, K, bands, band_count, parts, part_count,
                              Callback<int, i64, i64, i64, i64, R*>(pack_a), Callback<i64, i64, E*>(pack_b),
                              b_scratch, scratch);
}

}  // namespace ZS_NAMESPACE
