// Packing: matrices laid out as the kernel reads them. k counts elements.
#pragma once

#include "threads.h"
#include "tile.h"

namespace ZS_NAMESPACE {

using zstate::Team;

struct Range {
  i64 begin, end;
};
// The part of [0, n) that belongs to one member.
inline Range share(const Team& team, i64 n) {
  return {n * team.rank / team.size, n * (team.rank + 1) / team.size};
}

// A register of elements, whatever they are.
template <class E, class V>
ZS_DEVICE void store_bits(E* p, V v) {
  std::memcpy(static_cast<void*>(p), &v, sizeof v);
}

// dst[k·ldd + lane] = src[lane·lds + k] for lane < rows, zero in the other lanes: one register column of a
// panel.
template <class E, class S>
void pack_transposed(E* dst, i64 ldd, const S* src, i64 lds, int rows, i64 K) {
  using Op = Operand<E>;
  const i64 depth = depth_of<E>(K);
  for (i64 k = 0; k < depth; k += Op::L) {
    const int part = static_cast<int>(min_of(Op::L, depth - k));
    typename Op::V square[Op::L];
    for (int r = 0; r < Op::L; ++r)
      square[r] = r < rows ? Op::load_along(src + r * lds, k, K) : typename Op::V{};
    transpose(square);
    for (int i = 0; i < part; ++i) store_bits(dst + (k + i) * ldd, square[i]);
  }
}

// dst[k·ldd + lane] = src[k·lds + lane] for lane < columns, zero in the other lanes.
template <class E, class S>
void pack_straight(E* dst, i64 ldd, const S* src, i64 lds, int columns, i64 K) {
  const auto load = [&](i64 k) { return Io<S>::load_n(src + k * lds, columns); };
  for (i64 k = 0; k < depth_of<E>(K); ++k) store_bits(dst + k * ldd, Operand<E>::load_across(load, k, K));
}

// A row-major matrix [rows, K] as the transposed B of a large product: panels of kPanel rows, each
// [K][kPanel].
template <class E, class S, class R = RealOf<S>>
void pack_panels_transposed(const Team& team, E* dst, const S* src, i64 lds, i64 rows, i64 K) {
  const i64 columns = ceil_div(rows, kPanel<R>) * kPanelVectors;
  const Range mine = share(team, columns);
  for (i64 c = mine.begin; c < mine.end; ++c) {
    const i64 first = c * Simd<R>::lanes;
    E* panel = dst + c / kPanelVectors * kPanel<R> * depth_of<E>(K) + c % kPanelVectors * Simd<R>::lanes;
    pack_transposed(panel, kPanel<R>, src + min_of(first, rows) * lds, lds, lanes_at<R>(first, rows), K);
  }
}
// A row-major matrix [K, columns] as B: panels [K][kPanel].
template <class E, class S, class R = RealOf<S>>
void pack_panels_straight(const Team& team, E* dst, const S* src, i64 lds, i64 columns, i64 K) {
  const i64 vectors = ceil_div(columns, kPanel<R>) * kPanelVectors;
  const Range mine = share(team, vectors);
  for (i64 c = mine.begin; c < mine.end; ++c) {
    const i64 first = c * Simd<R>::lanes;
    E* panel = dst + c / kPanelVectors * kPanel<R> * depth_of<E>(K) + c % kPanelVectors * Simd<R>::lanes;
    pack_straight(panel, kPanel<R>, src + min_of(first, columns), lds, lanes_at<R>(first, columns), K);
  }
}
template <class E>
i64 panels_size(i64 columns, i64 K) {
  constexpr i64 P = kPanel<typename Operand<E>::Real>;
  return ceil_div(columns, P) * P * depth_of<E>(K);
}

}  // namespace ZS_NAMESPACE
