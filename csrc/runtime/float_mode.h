// How a thread rounds, and whether it treats subnormal numbers as zero. The members of a team take this over
// from their caller, so that no result depends on how many there are.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace zstate {

using FloatMode = std::uint64_t;

inline FloatMode float_mode() {
#if defined(__x86_64__)
  return _mm_getcsr() & ~0x3fu;  // without the flags of past exceptions
#elif defined(__aarch64__)
  FloatMode mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
#else
  return 0;
#endif
}

inline void set_float_mode([[maybe_unused]] FloatMode mode) {
#if defined(__x86_64__)
  _mm_setcsr(static_cast<unsigned>(mode));
#elif defined(__aarch64__)
  asm volatile("msr fpcr, %0" : : "r"(mode));
#endif
}

}  // namespace zstate
