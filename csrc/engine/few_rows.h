// Products with so few rows that packing the weights would cost more than the product: weights are read, and
// their gradients written, from one end to the other.
#pragma once

#include "engine/tile.h"

namespace ZS_NAMESPACE {

inline constexpr i64 kMostDirectRows = 3;  // of all steps

// The sums of up to L rows, one to a lane: out[r] = sum over k of w[r·ldw + k]·x[k].
// `Streams` rows are read side by side.
template <class S, int Streams, class R = RealOf<S>>
ZS_DEVICE void dot_group(const S* w, i64 ldw, i64 rows, const R* x, i64 K, R* out) {
  constexpr int L = Simd<R>::lanes;
  constexpr int at_once = L < Streams ? L : Streams;
  Vec<R> sum[L] = {};
  for (int r = 0; r < L && r < rows; r += at_once) {
    const S* row[at_once];
    for (int q = 0; q < at_once; ++q) row[q] = w + min_of(r + q, rows - 1) * ldw;
    Vec<R> acc[at_once] = {};
    i64 k = 0;
    for (; k + L <= K; k += L) {
      const Vec<R> xv = Io<R>::load(x + k);
#pragma GCC unroll 8
      for (int q = 0; q < at_once; ++q) acc[q] += Io<S>::load(row[q] + k) * xv;
    }
    if (k < K) {
      const int n = static_cast<int>(K - k);
      const Vec<R> xv = Io<R>::load_n(x + k, n);
#pragma GCC unroll 8
      for (int q = 0; q < at_once; ++q) acc[q] += Io<S>::load_n(row[q] + k, n) * xv;
    }
    for (int q = 0; q < at_once; ++q) sum[r + q] = acc[q];
  }
  transpose(sum);
  Vec<R> total = sum[0];
  for (int r = 1; r < L; ++r) total += sum[r];
  Io<R>::store(out, total);
}

// out[j] = sum over k of w[j·ldw + k]·x[k] for j < rows; `out` has room for whole vectors. Four rows side by
// side are the fastest from a cache, eight from memory (`far`); the sums are the same. Prefetching only
// costs.
template <class S, class R = RealOf<S>>
void dot_rows(const S* w, i64 ldw, i64 rows, const R* x, i64 K, R* out, bool far) {
  constexpr int L = Simd<R>::lanes;
  for (i64 j = 0; j < rows; j += L)
    if (far)
      dot_group<S, 8>(w + j * ldw, ldw, rows - j, x, K, out + j);
    else
      dot_group<S, 4>(w + j * ldw, ldw, rows - j, x, K, out + j);
}

// `Count` rows of weighted_rows(): sums[j] (+)= sum over q of x[q]·w[q·ldw + j].
template <class S, int Count, class R = RealOf<S>>
ZS_DEVICE void weighted_group(const S* w, i64 ldw, i64 columns, const R* x, R* sums, bool add) {
  constexpr int L = Simd<R>::lanes;
  i64 j = 0;
  for (; j + L <= columns; j += L) {
    Vec<R> sum = add ? Io<R>::load(sums + j) : Vec<R>{};
#pragma GCC unroll 8
    for (int q = 0; q < Count; ++q) sum += broadcast(x[q]) * Io<S>::load(w + q * ldw + j);
    Io<R>::store(sums + j, sum);
  }
  if (j == columns) return;
  const int lanes = static_cast<int>(columns - j);
  Vec<R> sum = add ? Io<R>::load_n(sums + j, lanes) : Vec<R>{};
#pragma GCC unroll 8
  for (int q = 0; q < Count; ++q) sum += broadcast(x[q]) * Io<S>::load_n(w + q * ldw + j, lanes);
  Io<R>::store_n(sums + j, sum, lanes);
}

// out[j - begin] (+)= sum over k of x[k]·w[k·ldw + j] for j in [begin, end): a few rows at a time, each from
// one end to the other, which is the fastest way to read memory.
template <class S, class R = RealOf<S>>
void weighted_rows(const S* w, i64 ldw, i64 begin, i64 end, const R* x, i64 K, R* out, bool accumulate) {
  constexpr int group = 8;
  const i64 columns = end - begin;
  w += begin;
  if (K == 0 && !accumulate) std::memset(out, 0, sizeof(R) * static_cast<std::size_t>(columns));
  i64 k = 0;
  for (; k + group <= K; k += group)
    weighted_group<S, group>(w + k * ldw, ldw, columns, x + k, out, accumulate || k > 0);
  for (; k < K; ++k) weighted_group<S, 1>(w + k * ldw, ldw, columns, x + k, out, accumulate || k > 0);
}

// C[m, columns] (+)= sum over k < K of a[k·lda + m]·b[k·ldb + column], for the few rows of a direct product:
// C is written from one end to the other. b's rows have room for whole vectors.
template <int K, bool Add, class R>
void outer_group(const R* a, i64 lda, i64 rows, const R* b, i64 ldb, i64 columns, R* c, i64 ldc) {
  constexpr int L = Simd<R>::lanes;
  for (i64 m = 0; m < rows; ++m, c += ldc) {
    Vec<R> x[K];
    for (int k = 0; k < K; ++k) x[k] = broadcast(a[k * lda + m]);
    const auto total = [&](Vec<R> sum, i64 j) {
#pragma GCC unroll 4
      for (int k = 0; k < K; ++k) sum += x[k] * Io<R>::load(b + k * ldb + j);
      return sum;
    };
    i64 j = 0;
    for (; j + L <= columns; j += L) Io<R>::store(c + j, total(Add ? Io<R>::load(c + j) : Vec<R>{}, j));
    if (j == columns) continue;
    const int lanes = static_cast<int>(columns - j);
    Io<R>::store_n(c + j, total(Add ? Io<R>::load_n(c + j, lanes) : Vec<R>{}, j), lanes);
  }
}
template <bool Add, class R>
void outer_rows(i64 K, const R* a, i64 lda, i64 rows, const R* b, i64 ldb, i64 columns, R* c, i64 ldc) {
  static_assert(kMostDirectRows == 3);
  const auto group = K == 1   ? outer_group<1, Add, R>
                     : K == 2 ? outer_group<2, Add, R>
                              : outer_group<3, Add, R>;
  group(a, lda, rows, b, ldb, columns, c, ldc);
}

}  // namespace ZS_NAMESPACE
