// Packing: matrices laid out as the kernel reads them. k counts elements.
#pragma once

#include "engine/tile.h"
#include "runtime/paths.h"
#include "runtime/sizes.h"
#include "runtime/threads.h"

namespace ZS_NAMESPACE {

using zstate::mark;
using zstate::Path;
using zstate::Range;
using zstate::share;
using zstate::Team;

// Reads the values of a row that lies at `from`, as write_elements() does.
template <class S>
ZS_DEVICE auto reader(const S* from) {
  return [from](i64 k, int lanes) { return Io<S>::load_n(from + k, lanes); };
}

// Reads a row of either type, or zeros.
template <class S, class R = RealOf<S>>
struct RowReader {
  const S* from = nullptr;
  const R* computed = nullptr;
  ZS_DEVICE Vec<R> operator()(i64 k, int lanes) const {
    if (computed) return Io<R>::load_n(computed + k, lanes);
    return from ? Io<S>::load_n(from + k, lanes) : Vec<R>{};
  }
};

// Writes `depth` elements of a row of A from element k0 on; load(k, lanes) gives its values, K in all.
template <class E, class Load>
ZS_DEVICE void write_elements(LeftOf<E>* dst, i64 lda, i64 k0, i64 depth, i64 K, const Load& load) {
  using Op = Operand<E>;
  if constexpr (Op::kTail > 0) {
    Op::quantise(dst, depth, K, load);
  } else {
    const i64 first = k0 * Op::kValues, count = min_of(depth * Op::kValues, K - first);
    for (i64 i = 0; i < count; i += Op::L) {
      const int n = static_cast<int>(min_of(Op::L, count - i));
      Op::write(dst, lda, i, load(first + i, n), n);
    }
    Op::end(dst, lda, count);
  }
}

// dst[k·ldd + lane] = src[lane·lds + k] for lane < rows, zero in the other lanes: one register column of a
// panel.
template <class E, class S>
void pack_transposed(E* dst, i64 ldd, const S* src, i64 lds, int rows, i64 K) {
  using Op = Operand<E>;
  const i64 depth = depth_of<E>(K);
  for (i64 k = 0; k < depth; k += Op::L) {
    const int part = static_cast<int>(min_of(Op::L, depth - k));
    using Values = decltype(Op::load_along(src, k, K));
    Values square[Op::L];
    for (int r = 0; r < Op::L; ++r) square[r] = r < rows ? Op::load_along(src + r * lds, k, K) : Values{};
    transpose(square);
    for (int i = 0; i < part; ++i) Op::store_right(dst + (k + i) * ldd, square[i]);
  }
}

// The same of the first `lanes` lanes only, which leaves the others as they are.
template <class E, class S>
void pack_lanes_transposed(E* dst, i64 ldd, const S* src, i64 lds, int rows, int lanes, i64 K) {
  constexpr int L = Operand<E>::L;
  constexpr i64 most = L * Operand<E>::kValues;
  alignas(64) E square[L * L];
  for (i64 k = 0; k < K; k += most) {
    const i64 part = min_of(most, K - k);
    pack_transposed(square, L, src + k, lds, rows, part);
    for (i64 i = 0; i < depth_of<E>(part); ++i, dst += ldd)
      std::memcpy(static_cast<void*>(dst), square + i * L, sizeof(E) * static_cast<std::size_t>(lanes));
  }
}

// dst[k·ldd + lane] = src[k·lds + lane] for lane < columns, zero in the other lanes.
template <class E, class S>
void pack_straight(E* dst, i64 ldd, const S* src, i64 lds, int columns, i64 K) {
  const auto load = [&](i64 k) { return Io<S>::load_n(src + k * lds, columns); };
  for (i64 k = 0; k < depth_of<E>(K); ++k) store_bits(dst + k * ldd, Operand<E>::load_across(load, k, K));
}

// Whether `rows` rows of K values are all finite: 0·x is NaN for all other x.
template <class S>
bool all_finite(const S* from, i64 ld, i64 rows, i64 K) {
  using R = RealOf<S>;
  constexpr int L = Simd<R>::lanes, at_once = 4;
  Vec<R> sum[at_once] = {};
  for (i64 r = 0; r < rows; ++r, from += ld) {
    i64 k = 0;
    for (; k + at_once * L <= K; k += at_once * L)
#pragma GCC unroll 4
      for (int q = 0; q < at_once; ++q) sum[q] += Io<S>::load(from + k + q * L) * R{0};
    for (; k < K; k += L) sum[0] += Io<S>::load_n(from + k, lanes_at<R>(k, K)) * R{0};
  }
  const Vec<R> total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  for (int i = 0; i < L; ++i)
    if (!(total[i] == 0)) return false;
  return true;
}

// Rows of elements in a panel of B, what lies behind it included.
template <class E>
constexpr i64 packed_depth(i64 K) {
  return depth_of<E>(K) + Operand<E>::kTail;
}

// Calls pack(to, first, lanes) for each register column of panels [K][kPanel] of `columns` columns; `to` is
// where the column that starts at `first` goes.
template <class E, class R, class Pack>
void pack_panels(const Team& team, E* dst, i64 columns, i64 K, const Pack& pack) {
  const Range mine = share(team, ceil_div(columns, kPanel<R>) * kPanelVectors);
  for (i64 c = mine.begin; c < mine.end && !team.stopped(); ++c) {
    const i64 first = c * Simd<R>::lanes;
    E* panel = dst + c / kPanelVectors * kPanel<R> * packed_depth<E>(K) + c % kPanelVectors * Simd<R>::lanes;
    pack(panel, min_of(first, columns), lanes_at<R>(first, columns));
  }
}
// A row-major matrix [rows, K] as the transposed B of a large product.
template <class E, class S, class R = RealOf<S>>
void pack_panels_transposed(const Team& team, E* dst, const S* src, i64 lds, i64 rows, i64 K) {
  pack_panels<E, R>(team, dst, rows, K, [&](E* to, i64 first, int lanes) {
    pack_transposed(to, kPanel<R>, src + first * lds, lds, lanes, K);
  });
}
// A row-major matrix [K, columns] as B.
template <class E, class S, class R = RealOf<S>>
void pack_panels_straight(const Team& team, E* dst, const S* src, i64 lds, i64 columns, i64 K) {
  pack_panels<E, R>(team, dst, columns, K, [&](E* to, i64 first, int lanes) {
    pack_straight(to, kPanel<R>, src + first, lds, lanes, K);
  });
}
template <class E>
i64 panels_size(i64 columns, i64 K) {
  constexpr i64 P = kPanel<typename Operand<E>::Real>;
  return zstate::size_product(ceil_div(columns, P), P, packed_depth<E>(K));
}

}  // namespace ZS_NAMESPACE
