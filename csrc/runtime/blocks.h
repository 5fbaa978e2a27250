// Large blocks of memory, kept between calls: for the scratch memory of a call and for large results.
//
// Memory that is new to the process is cleared by the kernel, page by page, when it is first written. For the
// results of training that costs up to a tenth of a forward pass, in every call; a block that an earlier call
// has used costs nothing.
#pragma once

#include <cstddef>

#include "runtime/inline.h"

namespace zstate {

// At least this many bytes, aligned to a cache line and uninitialised; throws std::bad_alloc.
void* take_block(std::size_t bytes);
// Keeps the block for a later call, or frees it if enough is kept.
void give_block(void* block) noexcept;
// How many bytes of a block may be used.
std::size_t block_size(const void* block);

// Returns all kept memory to the system.
void free_kept();

// How many bytes may be kept, and how many are. A lower limit frees what is over it.
void set_kept_limit(std::size_t bytes);
std::size_t kept_bytes();

// Scratch memory of one call.
class Workspace {
 public:
  ZS_INLINE explicit Workspace(std::size_t bytes)
      : data_(bytes ? static_cast<char*>(take_block(bytes)) : nullptr) {}
  ZS_INLINE ~Workspace() {
    if (data_) give_block(data_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  char* data() const { return data_; }

 private:
  char* data_;
};

}  // namespace zstate
