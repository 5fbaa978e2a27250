// What a graph's programs compute in one launch where torch takes many: the update of all parameters, the global norm,
// cross entropy, the gradient of a table, random numbers, and checks of indices that do not wait for the device.
//
// Numbers are float32; gradients, updates of tables and copies of weights may have 16 bits. Every sum has a fixed
// order, so the same inputs give the same bits. The texts in front of this one give kMost… and kThreads. A program that
// met an index outside its table is withheld: nothing it stores changes.

typedef long long i64;
typedef unsigned long long u64;
#define ZS_KERNEL extern "C" __global__ void __launch_bounds__(kThreads)

// The tensor that this block of the grid works on.
template <class Tensor>
__device__ const Tensor& own_tensor(const Tensor* tensors, i64 count) {
  int k = 0;
  while (k + 1 < count && blockIdx.x >= tensors[k + 1].first) ++k;
  return tensors[k];
}
struct Range {
  i64 begin, end;
};
__device__ Range own_part(i64 first, i64 count, i64 chunk) {
  const i64 begin = (blockIdx.x - first) * chunk;
  return {begin, begin + chunk < count ? begin + chunk : count};
}

// ---- types ----

enum { kFloat32 = 0, kBfloat16 = 1, kFloat16 = 2, kFloat64 = 3 };
typedef unsigned short u16;

template <int kType>
struct Stored {
  typedef u16 Bits;
};
template <>
struct Stored<kFloat32> {
  typedef float Bits;
};
template <>
struct Stored<kFloat64> {
  typedef double Bits;
};
template <int kType>
__device__ float widened(typename Stored<kType>::Bits bits) {
  if constexpr (kType == kFloat32) return bits;
  if constexpr (kType == kBfloat16) return __uint_as_float((unsigned)bits << 16);
  if constexpr (kType == kFloat16) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
}
template <int kType>
__device__ u16 narrowed(float value) {
  u16 bits;
  if constexpr (kType == kFloat16) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  } else {  // to nearest, ties to even
    const unsigned whole = __float_as_uint(value);
    bits = value != value ? 0x7fc0 : (u16)((whole + 0x7fff + ((whole >> 16) & 1)) >> 16);
  }
  return bits;
}

// ---- Adam ----

struct AdamTensor {
  float *values, *momentum, *velocity, *largest;  // null: no running maximum
  const void* gradient;
  i64 count, first, type;  // first: the tensor's first block; type: of the gradient
};
struct Adam {
  i64 count;
  const int* withheld;
  const bool* allowed;                                                    // whether to take a step at all; null: always
  const float *rate, *beta1, *beta2, *epsilon, *power1, *power2, *scale;  // null: gradients are not scaled
  AdamTensor tensors[kMostAdam];
};

template <int kType>
__device__ void adam_part(const Adam& all, const AdamTensor& t) {
  const Range part = own_part(t.first, t.count, kChunk);
  const float beta1 = *all.beta1, beta2 = *all.beta2, epsilon = *all.epsilon, scale = all.scale ? *all.scale : 1.0f;
  const float step = *all.rate * (sqrtf(1.0f - *all.power2) / (1.0f - *all.power1));
  float* __restrict__ values = t.values, * __restrict__ momentum = t.momentum, * __restrict__ velocity = t.velocity;
  const auto* __restrict__ gradient = (const typename Stored<kType>::Bits*)t.gradient;
#pragma unroll 4
  for (i64 i = part.begin + threadIdx.x; i < part.end; i += kThreads) {
    const float g = widened<kType>(gradient[i]) * scale;
    const float m = g * (1.0f - beta1) + momentum[i] * beta1;
    const float v = g * g * (1.0f - beta2) + velocity[i] * beta2;
    float below = v;
    if (t.largest) {
      below = t.largest[i] > v ? t.largest[i] : v;
      if (v != v) below = v;
      t.largest[i] = below;
    }
    momentum[i] = m;
    velocity[i] = v;
    values[i] -= step * (m / (sqrtf(below) + epsilon));
  }
}

ZS_KERNEL adam(const Adam all) {
  if (*all.withheld || (all.allowed && !*all.allowed)) return;
  const AdamTensor& t = own_tensor(all.tensors, all.count);
  if (t.type == kFloat32)
    adam_part<kFloat32>(all, t);
  else if (t.type == kBfloat16)
    adam_part<kBfloat16>(all, t);
  else
    adam_part<kFloat16>(all, t);
}

// ---- sums of squares ----

struct SquaresTensor {
  const void* values;
  float* sum;
  i64 count, first, blocks, type;
};
struct Squares {
  i64 count;
  float* parts;  // one per block of the first launch
  SquaresTensor tensors[kMostSquares];
};

__device__ float sum_of_block(float value) {
  __shared__ float warps[kThreads / 32];
#pragma unroll
  for (int lane = 16; lane; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
  for (int k = 0; k < kThreads / 32; ++k) total += warps[k];
  return total;
}

template <int kType>
__device__ float squares_part(const SquaresTensor& t) {
  const Range part = own_part(t.first, t.count, kChunk);
  const auto* values = (const typename Stored<kType>::Bits*)t.values;
  float sum = 0.0f;
#pragma unroll 4
  for (i64 i = part.begin + threadIdx.x; i < part.end; i += kThreads) {
    const float value = widened<kType>(values[i]);
    sum += value * value;
  }
  return sum;
}

ZS_KERNEL squares(const Squares all) {
  const SquaresTensor& t = own_tensor(all.tensors, all.count);
  const float own = t.type == kFloat32    ? squares_part<kFloat32>(t)
                    : t.type == kBfloat16 ? squares_part<kBfloat16>(t)
                                          : squares_part<kFloat16>(t);
  const float sum = sum_of_block(own);
  if (threadIdx.x == 0) all.parts[blockIdx.x] = sum;
}

// One block per tensor adds up its parts.
ZS_KERNEL squares_end(const Squares all) {
  const SquaresTensor& t = all.tensors[blockIdx.x];
  float sum = 0.0f;
  for (i64 k = threadIdx.x; k < t.blocks; k += kThreads) sum += all.parts[t.first + k];
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) *t.sum = sum;
}

// ---- cross entropy: a warp per row ----

__device__ float sum_of_warp(float value) {
#pragma unroll
  for (int lane = 16; lane; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  return value;
}

struct Entropy {
  const float *source, *labels;
  float *loss, *soft_max;
  i64 rows, classes;
};

// log Σ exp · Σ labels - Σ labels·source, all of the source minus its largest, so that exp cannot overflow.
ZS_KERNEL entropy(const Entropy p) {
  const i64 row = (i64)blockIdx.x * (kThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= p.rows) return;
  const float *source = p.source + row * p.classes, *labels = p.labels + row * p.classes;
  float most = -__int_as_float(0x7f800000);
  for (i64 j = lane; j < p.classes; j += 32) most = fmaxf(most, source[j]);
#pragma unroll
  for (int lanes = 16; lanes; lanes /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, lanes));
  float raised = 0.0f, weight = 0.0f, product = 0.0f;
  for (i64 j = lane; j < p.classes; j += 32) {
    const float moved = source[j] - most;
    raised += expf(moved);
    weight += labels[j];
    product += labels[j] * moved;
  }
  raised = sum_of_warp(raised), weight = sum_of_warp(weight), product = sum_of_warp(product);
  for (i64 j = lane; j < p.classes; j += 32) p.soft_max[row * p.classes + j] = expf(source[j] - most) / raised;
  if (lane == 0) p.loss[row] = logf(raised) * weight - product;
}

struct EntropyGradient {
  const float *factor, *soft_max, *labels;
  float* gradient;
  i64 rows, classes, factor_stride;  // 0: one factor for all rows
};

ZS_KERNEL entropy_gradient(const EntropyGradient p) {
  const i64 row = (i64)blockIdx.x * (kThreads / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (row >= p.rows) return;
  const float *soft_max = p.soft_max + row * p.classes, *labels = p.labels + row * p.classes;
  const float factor = p.factor[row * p.factor_stride];
  float weight = 0.0f;
  for (i64 j = lane; j < p.classes; j += 32) weight += labels[j];
  weight = sum_of_warp(weight);
  for (i64 j = lane; j < p.classes; j += 32)
    p.gradient[row * p.classes + j] = (soft_max[j] * weight - labels[j]) * factor;
}

// ---- the gradient of a table ----

struct AddRows {
  const void* updates;                                 // [count, columns]
  const i64* indices;                                  // [count], inside the table
  float* parts;                                        // [chunks, rows, columns]
  i64 count, rows, columns, tiles, chunk, type, each;  // each: columns of a thread, 2 or 1
};

// A block adds its chunk of updates in their order, each column by one thread, so that no two threads meet in a sum.
// The next updates are loaded while these are added.
template <int kType, int kEach>
__device__ void add_chunk(const AddRows& p, float* sums) {
  typedef typename Stored<kType>::Bits Bits;
  struct alignas(sizeof(Bits) * kEach) Pack {
    Bits bits[kEach];
  };
  struct alignas(4 * kEach) Sums {
    float of[kEach];
  };
  constexpr int kAhead = 8;
  const i64 tile = blockIdx.x % p.tiles, own = blockIdx.x / p.tiles, width = blockDim.x;
  const i64 column = (tile * width + threadIdx.x) * kEach, begin = own * p.chunk;
  const i64 end = begin + p.chunk < p.count ? begin + p.chunk : p.count;
  if (column >= p.columns) return;
  const Bits* updates = (const Bits*)p.updates + column;
  Sums* mine = (Sums*)sums + threadIdx.x;
  for (i64 row = 0; row < p.rows; ++row) mine[row * width] = Sums{};
  Pack packs[kAhead];
  int rows[kAhead];
  const auto load = [&](i64 k) {
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (k + a >= end) continue;
      rows[a] = (int)p.indices[k + a];
      packs[a] = *(const Pack*)(updates + (k + a) * p.columns);
    }
  };
  load(begin);
  for (i64 k = begin; k < end; k += kAhead) {
    Pack now[kAhead];
    int to[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) now[a] = packs[a], to[a] = rows[a];
    load(k + kAhead);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (k + a >= end) continue;
      Sums sum = mine[to[a] * width];
#pragma unroll
      for (int e = 0; e < kEach; ++e) sum.of[e] += widened<kType>(now[a].bits[e]);
      mine[to[a] * width] = sum;
    }
  }
  for (i64 row = 0; row < p.rows; ++row)
    *(Sums*)(p.parts + (own * p.rows + row) * p.columns + column) = mine[row * width];
}

ZS_KERNEL add_rows(const AddRows p) {
  extern __shared__ __align__(16) float sums[];  // [rows, threads, columns of a thread]
  if (p.type == kFloat32)
    p.each == 2 ? add_chunk<kFloat32, 2>(p, sums) : add_chunk<kFloat32, 1>(p, sums);
  else if (p.type == kBfloat16)
    p.each == 2 ? add_chunk<kBfloat16, 2>(p, sums) : add_chunk<kBfloat16, 1>(p, sums);
  else
    p.each == 2 ? add_chunk<kFloat16, 2>(p, sums) : add_chunk<kFloat16, 1>(p, sums);
}

// ---- 16-bit copies ----

struct NarrowTensor {
  const float* from;
  u16* to;
  i64 count, first;
};
struct Narrow {
  i64 count, type;
  NarrowTensor tensors[kMostNarrow];
};

template <int kType>
__device__ void narrow_part(const NarrowTensor& t) {
  const Range part = own_part(t.first, t.count, kChunk);
  const float* __restrict__ from = t.from;
  u16* __restrict__ to = t.to;
#pragma unroll 4
  for (i64 i = part.begin + threadIdx.x; i < part.end; i += kThreads) to[i] = narrowed<kType>(from[i]);
}

ZS_KERNEL narrow(const Narrow all) {
  const NarrowTensor& t = own_tensor(all.tensors, all.count);
  if (all.type == kBfloat16)
    narrow_part<kBfloat16>(t);
  else
    narrow_part<kFloat16>(t);
}

// ---- arithmetic on single numbers ----

enum { kAdd, kSubtract, kMultiply, kDivide, kMinimum, kMaximum, kRoot };

struct Scalars {
  i64 inputs, steps;
  float* results;                   // of every step
  const float* from[kMostNumbers];  // the inputs
  i64 codes[kMostSteps];            // the operation, and the places of its operands from bits 8 and 24
};

__device__ float combined(int operation, float a, float b) {
  switch (operation) {
    case kAdd:
      return a + b;
    case kSubtract:
      return a - b;
    case kMultiply:
      return a * b;
    case kDivide:
      return a / b;
    case kMinimum:
      return a != a || a < b ? a : b;
    case kMaximum:
      return a != a || a > b ? a : b;
    default:
      return sqrtf(a);
  }
}

// One thread computes; the whole warp fetches, so that the inputs' latencies overlap.
ZS_KERNEL scalars(const Scalars all) {
  __shared__ float values[kMostNumbers + kMostSteps];
  for (i64 k = threadIdx.x; k < all.inputs; k += kThreads) values[k] = *all.from[k];
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (i64 k = 0; k < all.steps; ++k) {
    const i64 code = all.codes[k];
    const float found = combined(code & 0xff, values[code >> 8 & 0xffff], values[code >> 24]);
    values[all.inputs + k] = found;
    all.results[k] = found;
  }
}

// ---- random numbers ----

struct Uniform {
  const u64* state;  // the key (2 words) and the counter (4)
  u64* after;
  void* values;
  i64 count, type;
  double low, width;
};

// Four words of the generator, Philox4x64-10: those at the counter plus `ahead`.
__device__ void draw(const u64* state, u64 ahead, u64 (&words)[4]) {
  u64 first_key = state[0], second_key = state[1];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    words[k] = state[2 + k] + ahead;
    ahead = words[k] < ahead;  // the carry
  }
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u64 first = 0xd2e7470ee14c6c93, second = 0xca5a826395121157, a = words[0], b = words[2];
    words[0] = __umul64hi(second, b) ^ words[1] ^ first_key;
    words[2] = __umul64hi(first, a) ^ words[3] ^ second_key;
    words[1] = second * b;
    words[3] = first * a;
    first_key += 0x9e3779b97f4a7c15;
    second_key += 0xbb67ae8584caa73b;
  }
}

// A number from the k-th part of the words, a whole word or half of one: its high bits as a fraction, then scaled with
// the roundings of NumPy, which fuses no product and sum.
template <int kType>
__device__ typename Stored<kType>::Bits uniform_number(const Uniform& p, const u64 (&words)[4], int k) {
  if constexpr (kType == kFloat64) {
    return __dadd_rn(p.low, __dmul_rn((double)(words[k] >> 11) * 0x1p-53, p.width));
  } else {
    const unsigned half = (unsigned)(words[k / 2] >> k % 2 * 32);
    const float value = __fadd_rn((float)p.low, __fmul_rn((float)(half >> 8) * 0x1p-24f, (float)p.width));
    if constexpr (kType == kFloat32)
      return value;
    else
      return narrowed<kType>(value);
  }
}

template <int kType>
__device__ void uniform_part(const Uniform& p) {
  typedef typename Stored<kType>::Bits Bits;
  constexpr int kEach = kType == kFloat64 ? 4 : 8;
  struct alignas(16) Pack {
    Bits numbers[kEach];
  } pack;
  const i64 thread = (i64)blockIdx.x * kThreads + threadIdx.x, begin = thread * kEach;
  if (begin >= p.count) return;
  u64 words[4];
  draw(p.state, thread + 1, words);  // NumPy counts before it draws
#pragma unroll
  for (int k = 0; k < kEach; ++k) pack.numbers[k] = uniform_number<kType>(p, words, k);
  Bits* to = (Bits*)p.values + begin;
  if (begin + kEach <= p.count)
    *(Pack*)to = pack;
  else
#pragma unroll
    for (int k = 0; k < kEach; ++k)
      if (begin + k < p.count) to[k] = pack.numbers[k];
}

ZS_KERNEL uniform(const Uniform p) {
  const int k = threadIdx.x;
  if (blockIdx.x == 0 && k < 6) p.after[k] = p.state[k] + (k == 5);  // the highest word counts the draws
  if (p.type == kFloat64)
    uniform_part<kFloat64>(p);
  else if (p.type == kFloat32)
    uniform_part<kFloat32>(p);
  else if (p.type == kBfloat16)
    uniform_part<kBfloat16>(p);
  else
    uniform_part<kFloat16>(p);
}

// ---- indices ----

struct Within {
  const void* from;
  void* to;
  i64 count, size, is_long, number;
  int* withheld;
};

// Moves indices outside 0 to size - 1 inside, and records the number of the check that found them.
ZS_KERNEL within(const Within p) {
  const i64 k = (i64)blockIdx.x * kThreads + threadIdx.x;
  if (k >= p.count) return;
  const i64 index = p.is_long ? ((const i64*)p.from)[k] : ((const int*)p.from)[k];
  const i64 inside = index < 0 ? 0 : index >= p.size ? p.size - 1 : index;
  if (p.is_long)
    ((i64*)p.to)[k] = inside;
  else
    ((int*)p.to)[k] = (int)inside;
  if (index != inside) *(volatile int*)p.withheld = (int)p.number;
}

// ---- variables ----

struct StoreTensor {
  char* to;
  const char* from;
  i64 bytes, first;
};
struct Store {
  i64 count;
  const int* withheld;
  StoreTensor tensors[kMostStore];
};

ZS_KERNEL store(const Store all) {
  if (*all.withheld) return;
  const StoreTensor& t = own_tensor(all.tensors, all.count);
  const Range part = own_part(t.first, t.bytes, kStoreChunk);
  const bool by_16 = ((i64)t.to | (i64)t.from | t.bytes) % 16 == 0;
  const i64 each = by_16 ? 16 : 1;
  for (i64 at = part.begin + threadIdx.x * each; at < part.end; at += kThreads * each)
    if (by_16)
      *(int4*)(t.to + at) = *(const int4*)(t.from + at);
    else
      t.to[at] = t.from[at];
}
