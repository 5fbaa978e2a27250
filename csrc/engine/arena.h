// Scratch memory of one call: pieces of one block.
#pragma once

#include "engine/simd.h"
#include "runtime/blocks.h"

namespace ZS_NAMESPACE {

// Hands out pieces of one block. Without a block it only counts, so that the same code first measures and
// then lays out.
class Arena {
 public:
  explicit Arena(char* base) : base_(base) {}
  template <class R>
  R* take(i64 count) {
    R* piece = base_ ? reinterpret_cast<R*>(base_ + used_) : nullptr;
    used_ += round_up(count * static_cast<i64>(sizeof(R)), 128) + kGap;
    return piece;
  }
  i64 used() const { return used_; }

 private:
  static constexpr i64 kGap = 128;  // keeps equal buffers off equal cache sets
  char* base_;
  i64 used_ = 0;
};

}  // namespace ZS_NAMESPACE
