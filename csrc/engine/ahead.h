// Prefetching of packed weights that no cache of one core holds.
//
// The first tile of a panel would wait for its weights, and all later ones find them in the second-level
// cache. So every tile prefetches a part of the panel that comes next.
#pragma once

#include "engine/simd.h"

namespace ZS_NAMESPACE {

// Weights beyond these come from so far away that it pays: an LSTM of 1,024 units takes 0.88 to 0.94 of the
// time in inference, a GRU 0.95 to 0.98 (two cores of Zen 5). With less it would cost up to 2%.
inline constexpr i64 kSlowBytes = i64{6} << 20;

// What a product prefetches: for each element along k the line at `at`, which then moves on by `step` bytes.
struct Ahead {
  const char* at = nullptr;
  i64 step = 0;
};

// The part of a panel that the tile of this number prefetches, one of `tiles` of K elements along k each.
template <class E>
Ahead part_ahead(const E* panel, i64 size, i64 tile, i64 tiles, i64 K) {
  const i64 bytes = size * static_cast<i64>(sizeof(E));
  return {reinterpret_cast<const char*>(panel) + bytes * tile / tiles, ceil_div(bytes, tiles * K)};
}

}  // namespace ZS_NAMESPACE
