// Stands in for machine.cuh: the printed cells on the CPU, one unit at a time, in float32.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>
using std::max;
using std::min;

typedef unsigned int u32;
typedef long long i64;
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
constexpr bool kIsHalf = false;
using Stored = float;
constexpr int kBytes = 4;
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
struct Place {
  int x;
};
static Place threadIdx, blockIdx, gridDim;
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __shfl_xor_sync(unsigned, float x, int) { return x; }
inline void __syncwarp() {}
inline void __syncthreads() {}
inline float __uint_as_float(u32 bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

constexpr float kLog2e = 1.4426950408889634f;
inline float exp2_fast(float x) { return std::exp2(x); }
inline float log_fast(float x) { return std::log(x); }
inline float root(float x) { return std::sqrt(x); }
inline float quotient(float a, float b) { return a / b; }

struct Real {
  float v;
};
inline Real operator+(Real a, Real b) { return {a.v + b.v}; }
inline Real operator-(Real a, Real b) { return {a.v - b.v}; }
inline Real operator*(Real a, Real b) { return {a.v * b.v}; }
inline bool operator<(Real a, Real b) { return a.v < b.v; }
inline bool operator>(Real a, Real b) { return a.v > b.v; }
namespace zstate {
template <>
struct Math<Real> {
  static Real splat(double x) { return {static_cast<float>(x)}; }
  static Real sigmoid(Real x) { return {1.0f / (1.0f + std::exp(-x.v))}; }
  static Real tanh(Real x) { return {std::tanh(x.v)}; }
};
}  // namespace zstate

// The second of a pair is not there: NaN, so that nothing may come from it.
struct Pair {
  float x = 0.0f;
  float2 value() const { return {x, NAN}; }
};
inline Pair take(const Stored* from, int count) {
  Pair pair;
  if (count) pair.x = *from;
  return pair;
}
inline Pair take_apart(const Stored* from, i64, int count) { return take(from, count); }
struct Same {
  float x = 0.0f;
  float2 value() const { return {x, x}; }
};
inline Same take_same(const Stored* from, int count) { return {count ? *from : 0.0f}; }
inline float2 load_pair(const Stored* from, int count) { return take(from, count).value(); }
inline void store_pair(Stored* to, float2 x, int count) {
  if (count) *to = x.x;
}
inline void put(Stored* to, float x) { *to = x; }
inline void prefetch(const void*) {}
