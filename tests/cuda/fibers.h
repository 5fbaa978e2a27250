// A GPU on the CPU: every thread of a launch is a fiber that runs until it waits for others, in random order. What is
// stored for other blocks arrives later, in random order too. A function per instruction that the engine's texts spell
// out; fibers.py puts calls of these in the instructions' places.
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <vector>
using std::max;
using std::min;

#define __CUDA_ARCH__ 900
#define __global__
#define __grid_constant__
#define __launch_bounds__(...)
typedef unsigned int u32;
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  u32 x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
template <class To, class From>
To same_bits(From from) {
  To to;
  static_assert(sizeof(to) == sizeof(from), "as many bits");
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
inline float __uint_as_float(u32 bits) { return same_bits<float>(bits); }
inline u32 __float_as_uint(float x) { return same_bits<u32>(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
template <class T>
T __ldg(const T* from) {
  return *from;
}

// ---- fibers

struct Barrier {
  int count = 0;
  long generation = 0;
};
struct Fiber {
  ucontext_t context;
  int block, thread;
  bool done = false;
  const Barrier* waits = nullptr;
  long since = 0;
};
struct Counter {  // an mbarrier
  long arrivals = 0, pending = 0, bytes = 0, phase = 0;
};
struct Place {
  int x;
};
static Place threadIdx, blockIdx, gridDim;
static std::mt19937 draws;
static ucontext_t scheduler;
static std::vector<Fiber> fibers;
static Fiber* self;
static int threads, cluster;  // of a block; blocks of a cluster
static std::vector<Barrier> of_warps, of_blocks, of_clusters;
static std::vector<std::array<std::array<u32, 6>, 32>> handed;  // by the lanes of a warp
static std::vector<char*> memories;                             // of blocks
static std::map<std::pair<int, u32>, Counter> counters;         // by block and address
static std::vector<std::function<void()>> on_their_way;

inline void fail(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}
inline bool once_in(u32 count) { return draws() % count == 0; }
inline void give_way() { swapcontext(&self->context, &scheduler); }
inline void pass(Barrier& barrier, int all) {
  if (++barrier.count == all) {
    barrier.count = 0;
    ++barrier.generation;
    return;
  }
  self->waits = &barrier, self->since = barrier.generation;
  give_way();
}
inline int warp() { return self->block * threads / 32 + self->thread / 32; }
inline void __syncwarp() { pass(of_warps[warp()], 32); }
inline void __syncthreads() { pass(of_blocks[self->block], threads); }
inline void __trap() { fail("trap"); }
inline char* block_memory() { return memories[self->block]; }
inline unsigned long __cvta_generic_to_shared(const void* p) { return static_cast<const char*>(p) - block_memory(); }
template <class T>
T __shfl_sync(u32, T value, int lane) {
  auto& lanes = handed[warp()];
  lanes[self->thread % 32][0] = same_bits<u32>(value);
  __syncwarp();
  const T found = same_bits<T>(lanes[lane][0]);
  __syncwarp();
  return found;
}
template <class T>
T __shfl_xor_sync(u32 all, T value, int distance) {
  return __shfl_sync(all, value, self->thread % 32 ^ distance);
}

// ---- instructions: results, then operands

inline void ex2_approx_ftz_f32(float& y, float x) { y = std::exp2(x); }
inline void rcp_approx_ftz_f32(float& y, float x) { y = 1.0f / x; }
inline void lg2_approx_f32(float& y, float x) { y = std::log2(x); }
inline void sqrt_approx_f32(float& y, float x) { y = std::sqrt(x); }
inline void div_full_f32(float& y, float a, float b) { y = a / b; }
inline void tanh_approx_f32(float& y, float x) { y = std::tanh(x); }
inline u32 bfloat16(float x) {
  const u32 bits = same_bits<u32>(x);
  return x != x ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
inline void cvt_rn_bf16x2_f32(u32& word, float high, float low) { word = bfloat16(low) | bfloat16(high) << 16; }
inline u32 float16(float x) { return same_bits<unsigned short>(static_cast<_Float16>(x)); }
inline void cvt_rn_f16x2_f32(u32& word, float high, float low) { word = float16(low) | float16(high) << 16; }
inline void cvt_f32_f16(float& x, unsigned short bits) { x = same_bits<_Float16>(bits); }
inline void cvt_rna_tf32_f32(u32& word, float x) { word = (same_bits<u32>(x) + 0x1000) & ~0x1fffu; }

inline void check_aligned(const void* p, int bytes) {
  if (reinterpret_cast<unsigned long>(p) % bytes) fail("an address that is not aligned");
}
inline void ld_relaxed_cta_global_b16(unsigned short& x, const void* p) { std::memcpy(&x, p, 2); }
inline void ld_relaxed_cta_global_b32(u32& x, const void* p) {
  check_aligned(p, 4);
  std::memcpy(&x, p, 4);
}
inline void ld_relaxed_cta_global_v2_b32(u32& x, u32& y, const void* p) {
  check_aligned(p, 8);
  x = static_cast<const u32*>(p)[0], y = static_cast<const u32*>(p)[1];
}
inline void ld_relaxed_gpu_global_v4_b32(u32& x, u32& y, u32& z, u32& w, const void* p) {
  check_aligned(p, 16);
  if (once_in(4)) give_way();
  const u32* const from = static_cast<const u32*>(p);
  x = from[0], y = from[1], z = from[2], w = from[3];
}
template <class... Words>
void store_later(void* p, Words... words) {
  check_aligned(p, 4 * sizeof...(words));
  u32* to = static_cast<u32*>(p);
  for (u32 word : {words...}) {
    on_their_way.push_back([=] { *to = word; });
    ++to;
  }
}
inline void st_relaxed_gpu_global_b32(void* p, u32 x) { store_later(p, x); }
inline void st_relaxed_gpu_global_v2_b32(void* p, u32 x, u32 y) { store_later(p, x, y); }
inline void st_relaxed_gpu_global_v4_b32(void* p, u32 x, u32 y, u32 z, u32 w) { store_later(p, x, y, z, w); }
inline void prefetch_global_L2(const void*) {}

// Row by row: a lane has A's rows g and g + 8, B's column g, and of the sums rows g and g + 8 of two columns.
inline void mma_sync_aligned(const char* shape, float& c0, float& c1, float& c2, float& c3, u32 a0, u32 a1, u32 a2,
                             u32 a3, u32 b0, u32 b1) {
  const bool is_tf32 = std::strstr(shape, "tf32"), is_bfloat16 = std::strstr(shape, "bf16");
  auto number = [=](u32 word, int half) {
    if (is_tf32) return same_bits<float>(word);
    const unsigned short bits = word >> half * 16;
    return is_bfloat16 ? same_bits<float>(static_cast<u32>(bits) << 16) : static_cast<float>(same_bits<_Float16>(bits));
  };
  auto& lanes = handed[warp()];
  const int lane = self->thread % 32;
  lanes[lane] = {a0, a1, a2, a3, b0, b1};
  __syncwarp();
  float* const sums[] = {&c0, &c1, &c2, &c3};
  for (int e = 0; e < 4; ++e)
    for (int k = 0; k < 8; ++k)
      for (int half = 0; half < (is_tf32 ? 1 : 2); ++half)
        *sums[e] += number(lanes[lane / 4 * 4 + k % 4][k / 4 * 2 + e / 2], half) *
                    number(lanes[(lane % 4 * 2 + e % 2) * 4 + k % 4][4 + k / 4], half);
  __syncwarp();
}

inline void mapa_shared_cluster_u32(u32& there, u32 address, u32 rank) { there = address | (rank + 1) << 24; }
inline void barrier_cluster_arrive_release_aligned() {}
inline void barrier_cluster_wait_acquire_aligned() { pass(of_clusters[self->block / cluster], threads * cluster); }
inline void settle(Counter& counter) {
  if (counter.pending || counter.bytes) return;
  ++counter.phase;
  counter.pending = counter.arrivals;
}
inline void mbarrier_init_shared_b64(u32 at, u32 arrivals) { counters[{self->block, at}] = {arrivals, arrivals}; }
inline void fence_mbarrier_init_release_cluster() {}
inline void mbarrier_arrive_expect_tx_shared_b64(u32 at, u32 bytes) {
  Counter& counter = counters.at({self->block, at});
  if (--counter.pending < 0) fail("too many arrivals");
  counter.bytes += bytes;
  settle(counter);
}
inline void mbarrier_try_wait_parity_shared_cta_b64(u32& done, u32 at, u32 parity) {
  done = (counters.at({self->block, at}).phase & 1) != parity;
  if (!done) give_way();
}
inline void st_async_shared_cluster_mbarrier_complete_tx_bytes_v4_b32(u32 to, u32 x, u32 y, u32 z, u32 w, u32 at) {
  const int peer = self->block / cluster * cluster + (to >> 24) - 1;
  char* const p = memories[peer] + (to & 0xffffff);
  check_aligned(p, 16);
  Counter& counter = counters.at({peer, at & 0xffffff});
  on_their_way.push_back([=, &counter] {
    const u32 words[] = {x, y, z, w};
    std::memcpy(p, words, 16);
    counter.bytes -= 16;
    settle(counter);
  });
}

// ---- launches

// Memory that ends where nothing may be touched, filled with what is no number.
inline char* ending_at_a_page(size_t bytes) {
  const size_t page = 4096, room = (bytes + page - 1) / page * page;
  char* const all =
      static_cast<char*>(mmap(0, room + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  mprotect(all + room, page, PROT_NONE);
  std::memset(all, 0xff, room);
  return all + room - bytes;
}
inline void release(char* memory, size_t bytes) {
  const size_t before = reinterpret_cast<size_t>(memory) % 4096;
  munmap(memory - before, before + bytes + 4096);
}
// Runs every thread of a launch; whether all came to their end.
inline bool run_all(void (*entry)(), int blocks, int shared, u32 seed) {
  const size_t stack = 256 << 10, count = static_cast<size_t>(blocks) * threads;
  draws.seed(seed);
  gridDim.x = blocks;
  for (auto* each : {&of_warps, &of_blocks, &of_clusters}) each->assign(count / 32, {});
  handed.assign(count / 32, {});
  counters.clear(), memories.clear(), on_their_way.clear(), fibers.clear();
  shared = (shared + 127) / 128 * 128;
  for (int b = 0; b < blocks; ++b) memories.push_back(ending_at_a_page(shared));
  char* const stacks = ending_at_a_page(stack * count);
  fibers.resize(count);
  std::vector<Fiber*> alive;
  for (size_t k = 0; k < count; ++k) {
    Fiber& f = fibers[k];
    f.block = k / threads, f.thread = k % threads;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = stacks + k * stack, f.context.uc_stack.ss_size = stack;
    f.context.uc_link = &scheduler;
    makecontext(&f.context, entry, 0);
    alive.push_back(&f);
  }
  long looks = 0;
  u32 slow = 0;  // a warp that others leave behind
  while (!alive.empty() && ++looks < 1'000'000'000) {
    if (looks % (256 * count) == 0) slow = draws() % (count / 32);
    while (!on_their_way.empty() && once_in(on_their_way.size() > 64 ? 2 : 12)) {
      std::swap(on_their_way[draws() % on_their_way.size()], on_their_way.back());
      const auto arrive = on_their_way.back();
      on_their_way.pop_back();
      arrive();
    }
    Fiber*& chosen = alive[draws() % alive.size()];
    self = chosen;
    if (self->waits && self->waits->generation == self->since) continue;
    if (static_cast<u32>(warp()) == slow && !once_in(1024)) continue;
    self->waits = nullptr;
    threadIdx.x = self->thread, blockIdx.x = self->block;
    swapcontext(&scheduler, &self->context);
    if (self->done) {
      chosen = alive.back();
      alive.pop_back();
    }
  }
  release(stacks, stack * count);
  for (char* each : memories) release(each, shared);
  return alive.empty();
}
