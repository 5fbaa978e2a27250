// What the machine offers, in one place: types, conversions, matrix instructions, exchange between blocks.
//
// Matrix operands are handled as 64-byte pieces of K ("k-blocks"): a thread's 16 bytes of a row hold its fragments of
// two matrix instructions, because K may be permuted as long as both operands are. 16-bit types and TF32 then share all
// code.
#pragma once

typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// Must match options.py and placement.py.
enum { kBfloat16 = 0, kFloat16 = 1, kTf32 = 2, kFloat32 = 3 };
enum { kBlock = 0, kCluster = 1, kGrid = 2, kSteps = 3, kWide = 4, kRow = 5 };

template <bool B, class X, class Y>
struct Select {
  using type = X;
};
template <class X, class Y>
struct Select<false, X, Y> {
  using type = Y;
};

constexpr bool kIsHalf = kType == kBfloat16 || kType == kFloat16;
using Stored = Select<kIsHalf, unsigned short, float>::type;
constexpr int kBytes = sizeof(Stored);

// The fast functions: accurate enough for every type but full float32.
ZS_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ZS_DEVICE float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ZS_DEVICE float log_fast(float x) {
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return 0.69314718f * y;
}
ZS_DEVICE float root(float x) {
  if constexpr (kType == kFloat32) return ::sqrtf(x);
  float y;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));  // within one unit
  return y;
}
ZS_DEVICE float quotient(float a, float b) {
  if constexpr (kType == kFloat32) return a / b;
  float y;
  asm("div.full.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));  // within two units, whatever the size of b
  return y;
}
// A float for the equations of the shared headers.
struct Real {
  float v;
};
ZS_DEVICE Real operator+(Real a, Real b) { return {a.v + b.v}; }
ZS_DEVICE Real operator-(Real a, Real b) { return {a.v - b.v}; }
ZS_DEVICE Real operator*(Real a, Real b) { return {a.v * b.v}; }
ZS_DEVICE bool operator<(Real a, Real b) { return a.v < b.v; }
ZS_DEVICE bool operator>(Real a, Real b) { return a.v > b.v; }

constexpr float kLog2e = 1.4426950408889634f;

namespace zstate {
template <>
struct Math<Real> {
  static ZS_DEVICE Real splat(double x) { return {static_cast<float>(x)}; }
  static ZS_DEVICE Real sigmoid(Real x) {
    if constexpr (kType == kBfloat16)
      return {0.5f * tanh({0.5f * x.v}).v + 0.5f};
    else if constexpr (kType == kFloat32)
      return {1.0f / (1.0f + ::expf(-x.v))};
    else
      return {reciprocal_fast(1.0f + exp2_fast(-kLog2e * x.v))};
  }
  static ZS_DEVICE Real tanh(Real x) {
    if constexpr (kType == kBfloat16) {
      // One instruction, within 2^-11: a quarter of the error of rounding to bfloat16.
      float y;
      asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x.v));
      return {y};
    } else if constexpr (kType == kFloat32)
      return {::tanhf(x.v)};
    else
      return {fmaf(-2.0f, reciprocal_fast(1.0f + exp2_fast(2.0f * kLog2e * x.v)), 1.0f)};
  }
};
}  // namespace zstate

// ---- conversions

ZS_DEVICE u32 pack(float low, float high) {
  u32 word;
  if constexpr (kType == kBfloat16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
ZS_DEVICE float widen(unsigned short bits) {
  float x;
  if constexpr (kType == kBfloat16)
    x = __uint_as_float(static_cast<u32>(bits) << 16);
  else
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
ZS_DEVICE float widen(float x) { return x; }

// Two neighbouring units, or a single one: the compiler then drops what follows from the other.
// `count` of them lie inside the layer (2, 1 or 0): what lies outside is 0 and is not stored.
// Converted where the value is used: a conversion next to the load would wait for it.
struct Pair {
  static constexpr bool in_pairs = kItemUnits == 2 && kHidden % 2 == 0, in_one_word = kIsHalf && in_pairs;
  u32 words[in_one_word ? 1 : 2];
  ZS_DEVICE float2 value() const {
    if constexpr (in_one_word)
      return {half(words[0] & 0xffff), half(words[0] >> 16)};
    else if constexpr (kIsHalf)
      return {half(words[0]), half(words[1])};
    else
      return {__uint_as_float(words[0]), __uint_as_float(words[1])};
  }
  static ZS_DEVICE float half(u32 bits) { return widen(static_cast<unsigned short>(bits)); }
};
// Strong loads stay where they are written, before the wait for the exchange; others sink to where they are used.
ZS_DEVICE u32 load_bits(const unsigned short* from) {
  unsigned short x;
  asm volatile("ld.relaxed.cta.global.b16 %0,[%1];" : "=h"(x) : "l"(from));
  return x;
}
ZS_DEVICE u32 load_bits(const void* from) {
  u32 x;
  asm volatile("ld.relaxed.cta.global.b32 %0,[%1];" : "=r"(x) : "l"(from));
  return x;
}

ZS_DEVICE Pair take_apart(const Stored* from, i64 stride, int count) {
  Pair x = {};
  if constexpr (Pair::in_one_word) {
    if (count) x.words[0] = load_bits(from) | load_bits(from + stride) << 16;
  } else {
    if (count > 0) x.words[0] = load_bits(from);
    if (kItemUnits == 2 && count > 1) x.words[1] = load_bits(from + stride);
  }
  return x;
}
ZS_DEVICE Pair take(const Stored* from, int count) {
  if constexpr (!Pair::in_pairs) return take_apart(from, 1, count);
  Pair x = {};
  if (count) {
    if constexpr (kIsHalf) {
      x.words[0] = load_bits(reinterpret_cast<const void*>(from));
    } else {
      asm volatile("ld.relaxed.cta.global.v2.b32 {%0,%1},[%2];"
                   : "=r"(x.words[0]), "=r"(x.words[sizeof(x) / 4 - 1])
                   : "l"(from));
    }
  }
  return x;
}
// One number for both units.
struct Same {
  u32 word;
  ZS_DEVICE float2 value() const {
    const float x = kIsHalf ? Pair::half(word) : __uint_as_float(word);
    return {x, x};
  }
};
ZS_DEVICE Same take_same(const Stored* from, int count) { return {count ? load_bits(from) : 0}; }
ZS_DEVICE float2 load_pair(const Stored* from, int count) { return take(from, count).value(); }
ZS_DEVICE void store_pair(Stored* to, float2 x, int count) {
  if constexpr (kIsHalf) {
    const u32 word = pack(x.x, kItemUnits == 2 ? x.y : 0.0f);
    if constexpr (Pair::in_pairs) {
      if (count) *reinterpret_cast<u32*>(to) = word;
    } else {
      if (count > 0) to[0] = static_cast<unsigned short>(word & 0xffff);
      if (kItemUnits == 2 && count > 1) to[1] = static_cast<unsigned short>(word >> 16);
    }
  } else {
    if constexpr (Pair::in_pairs) {
      if (count) *reinterpret_cast<float2*>(to) = x;
    } else {
      if (count > 0) to[0] = x.x;
      if (kItemUnits == 2 && count > 1) to[1] = x.y;
    }
  }
}
ZS_DEVICE void put(float* to, float x) { *to = x; }
ZS_DEVICE void put(unsigned short* to, float x) { *to = static_cast<unsigned short>(pack(x, 0.0f) & 0xffff); }

// ---- the operand of the matrix product, as words

constexpr int kPairWords = kIsHalf ? 1 : 2;

// A number that is there: all ones means "not there yet".
ZS_DEVICE u32 present(u32 word) { return word == 0xffffffffu ? 0x7fffffffu : word; }
ZS_DEVICE u32 present(float x) { return present(__float_as_uint(x)); }
ZS_DEVICE u32 operand_word(float x) {
  u32 word = __float_as_uint(x);
  if constexpr (kType == kTf32) asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(x));
  return present(word);
}
ZS_DEVICE void operand_pair(float2 x, u32 (&word)[kPairWords]) {
  if constexpr (kIsHalf) {
    word[0] = pack(x.x, x.y);  // conversions give the NaN 0x7fff: never all ones
  } else {
    word[0] = operand_word(x.x);
    word[kPairWords - 1] = operand_word(x.y);
  }
}
ZS_DEVICE uint4 weight_words(uint4 v) {
  if constexpr (kType == kTf32) {
    v.x = operand_word(__uint_as_float(v.x));
    v.y = operand_word(__uint_as_float(v.y));
    v.z = operand_word(__uint_as_float(v.z));
    v.w = operand_word(__uint_as_float(v.w));
  }
  return v;
}

// ---- matrix instructions: acc[16 rows, 8 columns] += one half of a k-block

ZS_DEVICE void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#define ZS_MMA(SHAPE)                                                                 \
  asm("mma.sync.aligned." SHAPE " {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" \
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1))
  if constexpr (kType == kBfloat16)
    ZS_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
  else if constexpr (kType == kFloat16)
    ZS_MMA("m16n8k16.row.col.f32.f16.f16.f32");
  else
    ZS_MMA("m16n8k8.row.col.f32.tf32.tf32.f32");
#undef ZS_MMA
}

// ---- exchange

ZS_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

ZS_DEVICE uint4 load_relaxed(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0,%1,%2,%3},[%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
ZS_DEVICE void store_relaxed(void* p, const u32 (&word)[kPairWords]) {
  if constexpr (kPairWords == 1)
    asm volatile("st.relaxed.gpu.global.b32 [%0],%1;" ::"l"(p), "r"(word[0]) : "memory");
  else
    asm volatile("st.relaxed.gpu.global.v2.b32 [%0],{%1,%2};" ::"l"(p), "r"(word[0]), "r"(word[kPairWords - 1])
                 : "memory");
}
ZS_DEVICE void store_vector(void* p, const uint4& v) {
  asm volatile("st.relaxed.gpu.global.v4.b32 [%0],{%1,%2,%3,%4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
ZS_DEVICE bool missing(const uint4& v) { return v.x == ~0u || v.y == ~0u || v.z == ~0u || v.w == ~0u; }

ZS_DEVICE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

#if __CUDA_ARCH__ >= 900
ZS_DEVICE u32 on_peer(u32 address, u32 rank) {
  u32 there;
  asm volatile("mapa.shared::cluster.u32 %0,%1,%2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
ZS_DEVICE void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
ZS_DEVICE void barrier_init(u32 barrier, u32 arrivals = 1) {
  asm volatile("mbarrier.init.shared.b64 [%0],%1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
ZS_DEVICE void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
ZS_DEVICE void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _,[%0],%1;" ::"r"(barrier), "r"(bytes) : "memory");
}
ZS_DEVICE bool barrier_passed(u32 barrier, u32 parity) {
  u32 done;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p;}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done;
}
ZS_DEVICE void send(u32 to, u32 barrier, const uint4& v) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0],{%1,%2,%3,%4},[%5];" ::"r"(to),
               "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier)
               : "memory");
}
ZS_DEVICE void barrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _,[%0];" ::"r"(barrier) : "memory");
}
// Copies from device memory into shared memory; the barrier counts the bytes.
ZS_DEVICE void copy_bulk(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(barrier)
               : "memory");
}
// Orders ordinary accesses before those of bulk copies and warp-group matrix instructions.
ZS_DEVICE void order_proxies() { asm volatile("fence.proxy.async;" ::: "memory"); }
// A counter in device memory, which blocks raise once all their stores are visible.
ZS_DEVICE void count_up(u64* counter) {
  asm volatile("red.release.gpu.global.add.u64 [%0],1;" ::"l"(counter) : "memory");
}
ZS_DEVICE u64 counted(const u64* counter) {
  u64 count;
  asm volatile("ld.relaxed.gpu.global.u64 %0,[%1];" : "=l"(count) : "l"(counter) : "memory");
  return count;
}
// Makes stores that precede a count that was read visible to bulk copies too.
ZS_DEVICE void see_counted() { asm volatile("fence.acq_rel.gpu; fence.proxy.async;" ::: "memory"); }
// A matrix in shared memory as warp-group instructions take it: rows of 64 bytes of K, 16-byte pieces swapped.
ZS_DEVICE u64 described(u32 address) {
  return (address & 0x3ffff) >> 4 | 1ull << 16 | static_cast<u64>(512 >> 4) << 32 | 2ull << 62;
}
// All threads of a warp group at once.
template <int Count>
ZS_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
ZS_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}
ZS_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
ZS_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
ZS_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
#endif

// From here on, what earlier launches wrote may be read.
ZS_DEVICE void wait_for_earlier_launches() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next launch begin, up to its own wait.
ZS_DEVICE void let_the_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Ends a wait that lasts too long, in debug builds: a bug would otherwise hang the device.
struct Patience {
  u32 looks = 0;
  ZS_DEVICE void look() {
    if constexpr (kDebug) {
      if (++looks > (1u << 24)) __trap();
    }
  }
};
