// The kept blocks: a short list, oldest first, behind a lock that is held for a few nanoseconds.
#include "runtime/blocks.h"

#include "runtime/paths.h"
#include "runtime/sizes.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <thread>

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(_WIN32)
#include <malloc.h>
#else
#include <pthread.h>
#include <unistd.h>
#endif

namespace zstate {
namespace {

#if defined(_WIN32)
void* aligned_allocate(std::size_t unit, std::size_t bytes) { return _aligned_malloc(bytes, unit); }
void aligned_free(void* start) { _aligned_free(start); }
#else
void* aligned_allocate(std::size_t unit, std::size_t bytes) { return std::aligned_alloc(unit, bytes); }
void aligned_free(void* start) { std::free(start); }
#endif

// Lies right before the bytes that are given out, in a cache line of its own.
struct Header {
  char* start;        // as the allocator gave it
  std::size_t bytes;  // from there on
};
constexpr std::size_t kHeader = 64;
// Blocks begin at different places of a page's cache sets: equal rows of several results are used together.
constexpr std::size_t kShift = 4096 + 128;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kHuge = std::size_t{2} << 20;
#if defined(__SANITIZE_ADDRESS__)
// No spare byte, so that the sanitizer sees the first one beyond.
constexpr std::size_t kLeast = 0, kShifts = 1, kUnit = kHeader;
#else
// Small calls of different sizes share one block: pages that are never written cost nothing.
constexpr std::size_t kLeast = std::size_t{1} << 20, kShifts = 16, kUnit = kPage;
#endif

std::size_t default_limit() {
  constexpr std::size_t most = std::size_t{512} << 20;
#if defined(_SC_PHYS_PAGES)
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page > 0)
    return std::min(most, static_cast<std::size_t>(pages) / 8 * static_cast<std::size_t>(page));
#endif
  return most;
}

constexpr int kMost = 64;
struct Kept {
  std::atomic_flag locked = ATOMIC_FLAG_INIT;
  char* blocks[kMost];  // as they were given out
  int count = 0;
  std::size_t bytes = 0;
  std::size_t limit = default_limit();
};
Kept g_kept;

void lock() {
  while (g_kept.locked.test_and_set(std::memory_order_acquire)) std::this_thread::yield();
}
void unlock() { g_kept.locked.clear(std::memory_order_release); }
#if !defined(_WIN32)
// A child of fork() must not inherit the list in the middle of a change by a thread that it does not have.
[[maybe_unused]] const int g_registered = pthread_atfork(lock, unlock, unlock);
#endif

class Lock {
 public:
  Lock() { lock(); }
  ~Lock() { unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

Header& header_of(char* block) { return *reinterpret_cast<Header*>(block - kHeader); }
std::size_t room_in(char* block) {
  const Header& header = header_of(block);
  return header.bytes - static_cast<std::size_t>(block - header.start);
}
void free_block(char* block) { aligned_free(header_of(block).start); }

char* remove_at(int place) {
  char* block = g_kept.blocks[place];
  std::copy(g_kept.blocks + place + 1, g_kept.blocks + g_kept.count, g_kept.blocks + place);
  --g_kept.count;
  g_kept.bytes -= header_of(block).bytes;
  return block;
}

constexpr std::size_t unit_for(std::size_t bytes) { return bytes >= 2 * kHuge ? kHuge : kUnit; }
// The size of a new block with room for `bytes`.
std::size_t size_for(std::size_t bytes) {
  const std::size_t wanted = std::max(bytes + kHeader + kShift * (kShifts - 1), kLeast);
  const std::size_t unit = unit_for(wanted);
  return (wanted + unit - 1) / unit * unit;
}

// The smallest that is large enough, unless much of it would lie idle in a result.
char* find_kept(std::size_t bytes) {
  const std::size_t most = size_for(bytes) / 4 * 5;
  const Lock lock;
  int best = -1;
  for (int i = 0; i < g_kept.count; ++i) {
    const std::size_t size = header_of(g_kept.blocks[i]).bytes;
    if (room_in(g_kept.blocks[i]) < bytes || size > most) continue;
    if (best < 0 || size < header_of(g_kept.blocks[best]).bytes) best = i;
  }
  return best < 0 ? nullptr : remove_at(best);
}

// A new block, or null.
char* allocate(std::size_t bytes) {
  static std::atomic<std::size_t> made{0};
  const std::size_t whole = size_for(bytes), unit = unit_for(whole);
  char* start = static_cast<char*>(aligned_allocate(unit, whole));
  if (!start) return nullptr;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (unit == kHuge) madvise(start, whole, MADV_HUGEPAGE);
#endif
  char* block = start + kHeader + kShift * (made.fetch_add(1, std::memory_order_relaxed) % kShifts);
  header_of(block) = {start, whole};
  return block;
}

// Frees the oldest until `room` bytes more are within the limit, or all of them.
void make_room(std::size_t room, bool all = false) {
  for (;;) {
    char* oldest;
    {
      const Lock lock;
      const bool full = all || g_kept.count == kMost || g_kept.bytes + room > g_kept.limit;
      if (!full || g_kept.count == 0) return;
      oldest = remove_at(0);
    }
    free_block(oldest);
  }
}

bool keep(char* block) {
  const Lock lock;
  const std::size_t bytes = header_of(block).bytes;
  if (g_kept.count == kMost || g_kept.bytes + bytes > g_kept.limit) return false;
  g_kept.blocks[g_kept.count++] = block;
  g_kept.bytes += bytes;
  return true;
}

std::size_t kept_limit() {
  const Lock lock;
  return g_kept.limit;
}

}  // namespace

void* take_block(std::size_t bytes) {
  if (bytes > static_cast<std::size_t>(kMostBytes)) throw_too_large();
  char* kept = find_kept(bytes);
  mark(kept ? Path::block_kept : Path::block_new);
  if (kept) return kept;
  if (char* block = allocate(bytes)) return block;
  free_kept();
  if (char* block = allocate(bytes)) return block;
  throw std::bad_alloc();
}

void free_kept() { make_room(0, true); }

void throw_too_large() { throw std::bad_alloc(); }

void give_block(void* given) noexcept {
  char* block = static_cast<char*>(given);
  if (keep(block)) return;  // in every call of a small layer: one lock, and no more
  const std::size_t bytes = header_of(block).bytes;
  if (bytes <= kept_limit()) make_room(bytes);
  if (!keep(block)) free_block(block);
}

std::size_t block_size(const void* block) { return room_in(static_cast<char*>(const_cast<void*>(block))); }

void set_kept_limit(std::size_t bytes) {
  {
    const Lock lock;
    g_kept.limit = bytes;
  }
  make_room(0);
}

std::size_t kept_bytes() {
  const Lock lock;
  return g_kept.bytes;
}

}  // namespace zstate
