// Products of sizes that come from a caller: one that no memory could hold throws instead of overflowing.
#pragma once

#include <cstdint>

#include "runtime/inline.h"

namespace zstate {

inline constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;

[[noreturn]] void throw_too_large();  // std::bad_alloc, which Python knows as MemoryError

// The product of sizes that are not negative; at most kMostBytes.
template <class... More>
ZS_INLINE std::int64_t size_product(std::int64_t first, More... more) {
  std::int64_t product = first;
  const bool overflows =
      (__builtin_mul_overflow(product, static_cast<std::int64_t>(more), &product) | ... | false);
  if (overflows || product > kMostBytes) throw_too_large();
  return product;
}
ZS_INLINE std::int64_t size_sum(std::int64_t a, std::int64_t b) {
  if (a > kMostBytes || b > kMostBytes || a + b > kMostBytes) throw_too_large();
  return a + b;
}

}  // namespace zstate
