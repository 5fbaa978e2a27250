// Scratch memory of one call: pieces of one block.
#pragma once

#include "engine/simd.h"
#include "runtime/blocks.h"
#include "runtime/sizes.h"

namespace ZS_NAMESPACE {

// Hands out pieces of one block. Without a block it only counts, so that the same code first measures and
// then lays out.
class Arena {
 public:
  explicit Arena(char* base) : base_(base) {}
  // Room for as many values as the product of these sizes.
  template <class R, class... Sizes>
  R* take(Sizes... sizes) {
    R* piece = base_ ? reinterpret_cast<R*>(base_ + used_) : nullptr;
    const i64 bytes = zstate::size_product(sizeof(R), sizes...);
    used_ = zstate::size_sum(used_, round_up(bytes, 128) + kGap);
    return piece;
  }
  i64 used() const { return used_; }

 private:
  static constexpr i64 kGap = 128;  // keeps equal buffers off equal cache sets
  char* base_;
  i64 used_ = 0;
};

}  // namespace ZS_NAMESPACE
