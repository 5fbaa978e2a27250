// Waiting without sleeping.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace zstate {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // some tens of cycles; the instruction meant for this, yield, takes one
#else
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

// Some microseconds: longer than members drift apart when each has a core, shorter than a time slice lost to
// another process.
constexpr int kPauses = 200;

// Spins while `waiting()` holds; after a while it offers the core to others, so that more threads than cores
// still progress.
template <class Waiting>
void spin_while(Waiting waiting) {
  for (int i = 0; waiting(); ++i) {
    if (i < kPauses)
      relax();
    else
      std::this_thread::yield();
  }
}

// On the steady clock.
inline std::int64_t nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace zstate
