// Vectors of the widest register of the instruction set this file is compiled for (GCC/Clang vector
// extensions), loads and stores of every storage type with conversion, and vector tanh and sigmoid.
//
// Part of the sources that are compiled once per instruction set: everything lives in ZS_NAMESPACE and no
// template of the standard library is instantiated, so that the linker can never merge code of a wider set
// into a narrower one.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "equations/activations.h"

namespace ZS_NAMESPACE {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
inline constexpr int kRegisters = 32;
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32;
inline constexpr int kRegisters = 16;
#elif defined(__aarch64__)
inline constexpr int kVectorBytes = 16;
inline constexpr int kRegisters = 32;
#else
inline constexpr int kVectorBytes = 16;
inline constexpr int kRegisters = 16;
#endif
// Whether a product can take one factor from a lane of a register: on ARM that costs nothing, while filling a
// register with a value from memory takes one of the multipliers.
#if defined(__aarch64__)
inline constexpr bool kMultipliesByLane = true;
#else
inline constexpr bool kMultipliesByLane = false;
#endif

using i64 = std::int64_t;

template <class A, class B>
inline constexpr bool kSameType = false;
template <class A>
inline constexpr bool kSameType<A, A> = true;

inline constexpr i64 min_of(i64 a, i64 b) { return a < b ? a : b; }
inline constexpr i64 max_of(i64 a, i64 b) { return a > b ? a : b; }
inline constexpr i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
inline constexpr i64 round_up(i64 a, i64 b) { return ceil_div(a, b) * b; }

// 16-bit floats are storage only; arithmetic on them is in float.
struct Bfloat16 {
  std::uint16_t bits;
};
struct Float16 {
  std::uint16_t bits;
};

template <class R>
struct Simd;
template <>
struct Simd<float> {
  typedef float Vec __attribute__((vector_size(kVectorBytes)));
  typedef float Unaligned __attribute__((vector_size(kVectorBytes), aligned(4)));
  typedef std::int32_t Int __attribute__((vector_size(kVectorBytes)));
  typedef std::uint32_t Uint __attribute__((vector_size(kVectorBytes)));
  typedef std::uint16_t Half __attribute__((vector_size(kVectorBytes / 2)));
  static constexpr int lanes = kVectorBytes / 4;
};
template <>
struct Simd<double> {
  typedef double Vec __attribute__((vector_size(kVectorBytes)));
  typedef double Unaligned __attribute__((vector_size(kVectorBytes), aligned(8)));
  typedef std::int64_t Int __attribute__((vector_size(kVectorBytes)));
  static constexpr int lanes = kVectorBytes / 8;
};
template <class R>
using Vec = typename Simd<R>::Vec;

// x in every lane. Written as a difference, which the compiler knows to be x itself: 0 + x is not, where x
// is -0, and costs an addition for each value of A in every product.
template <class R>
ZS_DEVICE Vec<R> broadcast(R x) {
  return x - Vec<R>{};
}

template <class V, class U>
ZS_DEVICE V bit_cast_to(U u) {
  static_assert(sizeof(V) == sizeof(U));
  V v;
  std::memcpy(&v, &u, sizeof v);
  return v;
}

// ---- conversions between float and the 16-bit types, a vector at a time ----

using VecF = Simd<float>::Vec;
using HalfBits = Simd<float>::Half;

ZS_DEVICE VecF widen(HalfBits bits, Bfloat16) {
  return bit_cast_to<VecF>(__builtin_convertvector(bits, Simd<float>::Uint) << 16);
}
#if defined(__AVX512BF16__)
ZS_DEVICE HalfBits narrow(VecF x, Bfloat16) {
  return bit_cast_to<HalfBits>(_mm512_maskz_cvtneps_pbh(0xffff, bit_cast_to<__m512>(x)));
}
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
ZS_DEVICE HalfBits narrow(VecF x, Bfloat16) {
  return bit_cast_to<HalfBits>(vcvt_bf16_f32(bit_cast_to<float32x4_t>(x)));
}
#else
ZS_DEVICE HalfBits narrow(VecF x, Bfloat16) {
  const auto u = bit_cast_to<Simd<float>::Uint>(x);
  const auto rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;  // to nearest, ties to even
  const auto quiet = (u >> 16) | 0x40u;                         // rounding could turn a NaN into infinity
  return __builtin_convertvector(x == x ? rounded : quiet, HalfBits);
}
#endif

// The masked forms, with all lanes on: GCC 12 warns about the undefined value inside its plain ones.
#if defined(__AVX512F__)
ZS_DEVICE VecF widen(HalfBits bits, Float16) {
  return bit_cast_to<VecF>(_mm512_maskz_cvtph_ps(0xffff, bit_cast_to<__m256i>(bits)));
}
ZS_DEVICE HalfBits narrow(VecF x, Float16) {
  return bit_cast_to<HalfBits>(
      _mm512_maskz_cvtps_ph(0xffff, bit_cast_to<__m512>(x), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__F16C__)
ZS_DEVICE VecF widen(HalfBits bits, Float16) {
  return bit_cast_to<VecF>(_mm256_cvtph_ps(bit_cast_to<__m128i>(bits)));
}
ZS_DEVICE HalfBits narrow(VecF x, Float16) {
  return bit_cast_to<HalfBits>(_mm256_cvtps_ph(bit_cast_to<__m256>(x), _MM_FROUND_TO_NEAREST_INT));
}
#elif defined(__aarch64__)
ZS_DEVICE VecF widen(HalfBits bits, Float16) {
  return bit_cast_to<VecF>(vcvt_f32_f16(bit_cast_to<float16x4_t>(bits)));
}
ZS_DEVICE HalfBits narrow(VecF x, Float16) {
  return bit_cast_to<HalfBits>(vcvt_f16_f32(bit_cast_to<float32x4_t>(x)));
}
#else
ZS_DEVICE VecF widen(HalfBits bits, Float16) {
  using U = Simd<float>::Uint;
  const U h = __builtin_convertvector(bits, U);
  const U magnitude = (h & 0x7fffu) << 13;
  // Scaling by 2^112 moves the exponent's bias and normalises subnormals in one exact product.
  const VecF scaled = bit_cast_to<VecF>(magnitude) * 0x1p112f;
  const U special = bit_cast_to<U>(scaled) | 0x7f800000u;
  const U finite = bit_cast_to<U>(scaled);
  return bit_cast_to<VecF>(((h & 0x7c00u) == 0x7c00u ? special : finite) | ((h & 0x8000u) << 16));
}
ZS_DEVICE HalfBits narrow(VecF x, Float16) {
  using U = Simd<float>::Uint;
  const U u = bit_cast_to<U>(x);
  const U magnitude = u & 0x7fffffffu;
  // Below 2^-14: adding 0.5 aligns the subnormal's bits (and rounds them) at the bottom of the word.
  const U subnormal = bit_cast_to<U>(bit_cast_to<VecF>(magnitude) + 0.5f) - 0x3f000000u;
  const U normal = (magnitude - 0x38000000u + 0x0fffu + ((magnitude >> 13) & 1u)) >> 13;
  const U overflow = magnitude > 0x7f800000u ? U{} + 0x7e00u : U{} + 0x7c00u;
  const U finite = magnitude < 0x38800000u ? subnormal : normal;
  const U result = magnitude >= 0x477ff000u ? overflow : finite;
  return __builtin_convertvector(result | ((u >> 16) & 0x8000u), HalfBits);
}
#endif

// ---- loads and stores; *_n touches the first n lanes only, and the others read as zero ----

template <class S>
struct Io {  // float and double: stored as they are computed with
  using Real = S;
  using V = Vec<S>;
  static constexpr int lanes = Simd<S>::lanes;
  // Through a vector type rather than memcpy: the compiler then knows that only values of type S change.
  using Unaligned = typename Simd<S>::Unaligned;
  static ZS_DEVICE V load(const S* p) { return *reinterpret_cast<const Unaligned*>(p); }
  static ZS_DEVICE void store(S* p, V v) { *reinterpret_cast<Unaligned*>(p) = v; }
  static ZS_DEVICE V load_n(const S* p, int n) {
    if (n == lanes) [[likely]]
      return load(p);
    return load_part(p, n);
  }
  static ZS_DEVICE void store_n(S* p, V v, int n) {
    if (n == lanes) [[likely]] {
      store(p, v);
      return;
    }
    std::memcpy(p, &v, sizeof(S) * static_cast<unsigned>(n));
  }

 private:
  static ZS_DEVICE V load_part(const S* p, int n) {
#if defined(__AVX512F__)
    const unsigned mask = (1u << n) - 1u;
    if constexpr (sizeof(S) == 4)
      return bit_cast_to<V>(_mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), p));
    else
      return bit_cast_to<V>(_mm512_maskz_loadu_pd(static_cast<__mmask8>(mask), p));
#else
    V v{};
    std::memcpy(&v, p, sizeof(S) * static_cast<unsigned>(n));
    return v;
#endif
  }
};

template <class S>
struct HalfIo {
  using Real = float;
  using V = VecF;
  static constexpr int lanes = Simd<float>::lanes;
  static ZS_DEVICE V load(const S* p) {
    HalfBits bits;
    std::memcpy(&bits, p, sizeof bits);
    return widen(bits, S{});
  }
  static ZS_DEVICE void store(S* p, V v) {
    const HalfBits bits = narrow(v, S{});
    std::memcpy(p, &bits, sizeof bits);
  }
  static ZS_DEVICE V load_n(const S* p, int n) {
    if (n == lanes) [[likely]]
      return load(p);
    HalfBits bits{};
    std::memcpy(&bits, p, sizeof(S) * static_cast<unsigned>(n));
    return widen(bits, S{});
  }
  static ZS_DEVICE void store_n(S* p, V v, int n) {
    const HalfBits bits = narrow(v, S{});
    std::memcpy(p, &bits, sizeof(S) * static_cast<unsigned>(n));
  }
};
template <>
struct Io<Bfloat16> : HalfIo<Bfloat16> {};
template <>
struct Io<Float16> : HalfIo<Float16> {};
template <class S>
using RealOf = typename Io<S>::Real;

// ---- exp, and from it sigmoid and tanh; and what a vector type lacks ----

template <class R>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  static constexpr float round_magic = 0x1.8p23f, log2e = 1.44269504088896341f;
  static constexpr float ln2_hi = 0.693359375f,
                         ln2_lo = -2.12194440e-4f;  // hi has few bits: n·hi is exact without FMA too
  static constexpr std::int32_t sign = INT32_MIN, bias = 127, mantissa = 23;
  static constexpr float lowest = -104.0f, highest = 89.0f;  // exp() beyond these is zero, or infinite
  static constexpr int degree = 4;  // (expm1(r) - r) / r² on |r| <= ln2/2, Chebyshev fit, error 7e-8
  static constexpr float poly[] = {0.5f, 0.16666573381900846f, 0.041666550110305124f, 0.0083637738744055735f,
                                   0.0013926926614021906f};
};
template <>
struct ExpConstants<double> {
  static constexpr double round_magic = 0x1.8p52, log2e = 1.44269504088896340736;
  static constexpr double ln2_hi = 0x1.62e42feep-1, ln2_lo = 0x1.a39ef35793c76p-33;
  static constexpr std::int64_t sign = INT64_MIN, bias = 1023, mantissa = 52;
  static constexpr double lowest = -746.0, highest = 710.0;
  static constexpr int degree = 10;  // error 2e-18
  static constexpr double poly[] = {0.5,
                                    0.16666666666666671438,
                                    0.041666666666666670074,
                                    0.0083333333333255446996,
                                    0.0013888888888883326674,
                                    0.00019841269876864354929,
                                    0.000024801587327007186731,
                                    2.7557252833516909748e-6,
                                    2.7557271810219799569e-7,
                                    2.5106274733573294687e-8,
                                    2.0915442297780115216e-9};
};

template <class R>
struct LogConstants;
template <>
struct LogConstants<float> {
  static constexpr float least = 0x1p-126f, up = 0x1p25f, root_half = 0x1.6a09e6p-1f;
  static constexpr float ln2_hi = 0.693359375f, ln2_lo = -2.12194440e-4f;
  static constexpr std::int32_t up_bits = 25;
  static constexpr int terms = 5;
};
template <>
struct LogConstants<double> {
  static constexpr double least = 0x1p-1022, up = 0x1p54, root_half = 0x1.6a09e667f3bcdp-1;
  static constexpr double ln2_hi = 0x1.62e42feep-1, ln2_lo = 0x1.a39ef35793c76p-33;
  static constexpr std::int64_t up_bits = 54;
  static constexpr int terms = 12;
};

template <class R>
struct VectorMath {
  using V = Vec<R>;
  using I = typename Simd<R>::Int;
  using C = ExpConstants<R>;

  static ZS_DEVICE V splat(double x) { return broadcast(static_cast<R>(x)); }

  // x·2^n. In two factors where there is no instruction for it, so that results may be subnormal.
  static ZS_DEVICE V scale(V x, V n) {
#if defined(__AVX512F__)
    if constexpr (sizeof(R) == 4)
      return bit_cast_to<V>(_mm512_maskz_scalef_ps(0xffff, bit_cast_to<__m512>(x), bit_cast_to<__m512>(n)));
    else
      return bit_cast_to<V>(_mm512_maskz_scalef_pd(0xff, bit_cast_to<__m512d>(x), bit_cast_to<__m512d>(n)));
#else
    const I k = bit_cast_to<I>(n + C::round_magic) - bit_cast_to<I>(splat(C::round_magic));
    const I half = k >> 1;
    const V a = bit_cast_to<V>((half + C::bias) << C::mantissa);
    const V b = bit_cast_to<V>((k - half + C::bias) << C::mantissa);
    return x * a * b;
#endif
  }
  // t = n·ln2 + r with |r| <= ln2/2; gives n and expm1(r).
  static ZS_DEVICE void reduce(V t, V& n, V& expm1_r) {
    n = (t * C::log2e + C::round_magic) - C::round_magic;
    const V r = (t - n * C::ln2_hi) - n * C::ln2_lo;
    // Even and odd powers apart: two short chains instead of a long one.
    const V square = r * r;
    V even = splat(C::poly[C::degree]), odd = splat(C::poly[C::degree - 1]);
#pragma GCC unroll 16
    for (int i = C::degree - 2; i >= 0; i -= 2) even = even * square + C::poly[i];
#pragma GCC unroll 16
    for (int i = C::degree - 3; i >= 1; i -= 2) odd = odd * square + C::poly[i];
    expm1_r = square * (odd * r + even) + r;
  }
  // x, or the bound that it is beyond; NaN stays. Comparing and choosing would take two instructions.
#if defined(__AVX512F__)
#define ZS_BOUND(op, beyond)                                                                               \
  if constexpr (sizeof(R) == 4)                                                                            \
    return bit_cast_to<V>(_mm512_maskz_##op##_ps(0xffff, bit_cast_to<__m512>(b), bit_cast_to<__m512>(x))); \
  else                                                                                                     \
    return bit_cast_to<V>(_mm512_maskz_##op##_pd(0xff, bit_cast_to<__m512d>(b), bit_cast_to<__m512d>(x)))
#elif defined(__AVX__)
#define ZS_BOUND(op, beyond)                                                                 \
  if constexpr (sizeof(R) == 4)                                                              \
    return bit_cast_to<V>(_mm256_##op##_ps(bit_cast_to<__m256>(b), bit_cast_to<__m256>(x))); \
  else                                                                                       \
    return bit_cast_to<V>(_mm256_##op##_pd(bit_cast_to<__m256d>(b), bit_cast_to<__m256d>(x)))
#elif defined(__x86_64__)
#define ZS_BOUND(op, beyond)                                                              \
  if constexpr (sizeof(R) == 4)                                                           \
    return bit_cast_to<V>(_mm_##op##_ps(bit_cast_to<__m128>(b), bit_cast_to<__m128>(x))); \
  else                                                                                    \
    return bit_cast_to<V>(_mm_##op##_pd(bit_cast_to<__m128d>(b), bit_cast_to<__m128d>(x)))
#else
#define ZS_BOUND(op, beyond) return x beyond b ? b : x
#endif
  static ZS_DEVICE V at_least(V b, V x) { ZS_BOUND(max, <); }
  static ZS_DEVICE V at_most(V b, V x) { ZS_BOUND(min, >); }
#undef ZS_BOUND
  static ZS_DEVICE V between(double least, double most, V x) {
    return at_least(splat(least), at_most(splat(most), x));
  }
  static ZS_DEVICE V minus_abs(V x) { return bit_cast_to<V>(bit_cast_to<I>(x) | sign_bit()); }
  static ZS_DEVICE I sign_bit() { return I{} + C::sign; }

  // The first lanes of x, and `fill` in the others.
  static ZS_DEVICE V first_lanes(V x, int lanes, double fill) {
    I number{};
    for (int i = 0; i < Simd<R>::lanes; ++i) number[i] = i;
    return number < lanes ? x : splat(fill);
  }
  static ZS_DEVICE V sqrt(V x) {
    V y;
    for (int i = 0; i < Simd<R>::lanes; ++i)
      y[i] = sizeof(R) == 4 ? static_cast<R>(__builtin_sqrtf(static_cast<float>(x[i])))
                            : static_cast<R>(__builtin_sqrt(static_cast<double>(x[i])));
    return y;
  }

  // exp of what is not above zero.
  static ZS_DEVICE V exp_negative(V x) {
    V n, p;
    reduce(at_least(splat(C::lowest), x), n, p);
    return scale(p + splat(1.0), n);
  }

  static ZS_DEVICE V exp(V x) {
    V n, p;
    reduce(between(C::lowest, C::highest, x), n, p);
    return scale(p + splat(1.0), n);
  }
  // exp(x) - 1 of what is not above zero.
  static ZS_DEVICE V expm1_negative(V x) { return expm1(at_least(splat(C::lowest), x)); }
  // log of x, which is positive, finite and not subnormal, plus `rest`, which is small against it.
  // With x = 2^k·(1 + f) and s = f / (2 + f): log(1 + f) = f - f²/2 + s·(f²/2 + s²·(2/3 + 2/5·s² + ...)).
  static ZS_DEVICE V log_plus(V x, V k_before, V rest) {
    using G = LogConstants<R>;
    const I bits = bit_cast_to<I>(x), k = (bits - bit_cast_to<I>(splat(G::root_half))) >> C::mantissa;
    const V f = bit_cast_to<V>(bits - (k << C::mantissa)) - splat(1.0);
    const V s = f / (f + splat(2.0)), z = s * s, half = f * f * splat(0.5);
    V q = splat(2.0 / (2 * G::terms + 1));
#pragma GCC unroll 16
    for (int i = G::terms - 1; i >= 1; --i) q = q * z + splat(2.0 / (2 * i + 1));
    const V n = __builtin_convertvector(k, V) + k_before;
    return n * G::ln2_hi - ((half - (s * (half + q * z) + (n * G::ln2_lo + rest))) - f);
  }
  static ZS_DEVICE V log(V x) {
    using G = LogConstants<R>;
    const V zero = splat(0.0), infinite = splat(static_cast<double>(__builtin_inff()));
    const auto small = x < G::least;
    const V y = log_plus(small ? x * G::up : x, small ? splat(-static_cast<double>(G::up_bits)) : zero, zero);
    const V positive = x == infinite ? infinite : y;
    const V other = x == zero ? -infinite : splat(static_cast<double>(__builtin_nanf("")));
    return x > zero ? positive : other;
  }
  // max(x, 0) + log(1 + exp(-|x|)).
  static ZS_DEVICE V softplus(V x) {
    const V one = splat(1.0), e = exp_negative(minus_abs(x)), w = one + e;
    const V y = log_plus(w, splat(0.0), (e - (w - one)) / w);
    return relu(x) + (x == x ? y : x);
  }
  static ZS_DEVICE V abs(V x) { return bit_cast_to<V>(bit_cast_to<I>(x) & ~sign_bit()); }

  // exp(x) - 1 of what is neither so low nor so high that 2^n has no exponent.
  static ZS_DEVICE V expm1(V x) {
    V n, p;
    reduce(x, n, p);
    const V one = splat(1.0), s = scale(one, n);
    return s * p + (s - one);
  }
  static ZS_DEVICE V sigmoid(V x) {
    const V one = splat(1.0);
    return one / (one + exp(-x));
  }
  // With m = expm1(2x), tanh x = m / (m + 2): no cancellation near zero. From 20 on it is 1.
  static ZS_DEVICE V tanh(V x) {
    const V m = expm1(between(-40.0, 40.0, x + x));
    return m / (m + splat(2.0));
  }
};
template <>
struct Math<Simd<float>::Vec> : VectorMath<float> {};
template <>
struct Math<Simd<double>::Vec> : VectorMath<double> {};

// sum + a[Lane]·b.
#if defined(__aarch64__)
template <int Lane>
ZS_DEVICE VecF add_lane_product(VecF sum, VecF a, VecF b) {
  return bit_cast_to<VecF>(vfmaq_laneq_f32(bit_cast_to<float32x4_t>(sum), bit_cast_to<float32x4_t>(b),
                                           bit_cast_to<float32x4_t>(a), Lane));
}
template <int Lane>
ZS_DEVICE Vec<double> add_lane_product(Vec<double> sum, Vec<double> a, Vec<double> b) {
  return bit_cast_to<Vec<double>>(vfmaq_laneq_f64(bit_cast_to<float64x2_t>(sum), bit_cast_to<float64x2_t>(b),
                                                  bit_cast_to<float64x2_t>(a), Lane));
}
#endif

// ---- transposing a square of lanes × lanes, for packing row-major weights ----

template <int Step, class V, int... J>
ZS_DEVICE void exchange(V& a, V& b) {
  constexpr int n = sizeof...(J);
  const V low = __builtin_shufflevector(a, b, ((J & Step) ? n + J - Step : J)...);
  const V high = __builtin_shufflevector(a, b, ((J & Step) ? n + J : J + Step)...);
  a = low;
  b = high;
}
template <int Step, class V>
ZS_DEVICE void exchange_lanes(V& a, V& b) {
  constexpr int n = sizeof(V) / sizeof(a[0]);
  if constexpr (n == 16)
    exchange<Step, V, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>(a, b);
  else if constexpr (n == 8)
    exchange<Step, V, 0, 1, 2, 3, 4, 5, 6, 7>(a, b);
  else if constexpr (n == 4)
    exchange<Step, V, 0, 1, 2, 3>(a, b);
  else
    exchange<Step, V, 0, 1>(a, b);
}
template <int Step, class V>
ZS_DEVICE void transpose_from(V* rows) {
  constexpr int n = sizeof(V) / sizeof(rows[0][0]);
#pragma GCC unroll 16
  for (int i = 0; i < n; ++i)
    if (!(i & Step)) exchange_lanes<Step>(rows[i], rows[i + Step]);
  if constexpr (Step > 1) transpose_from<Step / 2>(rows);
}
template <class V>
ZS_DEVICE void transpose(V* rows) {
  transpose_from<static_cast<int>(sizeof(V) / sizeof(rows[0][0])) / 2>(rows);
}

}  // namespace ZS_NAMESPACE
