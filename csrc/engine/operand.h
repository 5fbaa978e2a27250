// What the kernels multiply: the elements of packed operands, and how values are packed into them.
//
// float and double are multiplied as they are. Where the CPU has AVX-512 BF16, or ARM's BF16, bfloat16 calls
// multiply pairs: an element is two neighbours along k, and one instruction multiplies and adds both, in
// float. So a product over K values is Depth(K) = K/2 elements deep; an odd K is padded with zero on both
// sides.
#pragma once

#include "engine/simd.h"

namespace ZS_NAMESPACE {

template <class E>
struct Operand {  // float and double
  using Real = E;
  using V = Vec<E>;
  using Register = V;
  using Left = E;  // the elements of A; E are those of B
  using Sum = V;   // what products are added up in
  static constexpr int L = Simd<E>::lanes;
  static constexpr bool kPlain = true;  // elements are the values themselves
  static constexpr int kValues = 1;     // along k, in one element
  static constexpr int kTerms = 1;      // elements that add up to a value of A
  static constexpr int kTail = 0;       // rows of elements behind a panel of B, which end() reads
  static constexpr double kSpeed = 1;   // against products of float

  // The value of a sum; integers have scales (small_operands.h).
  static ZS_DEVICE V finished(V sum, const E*, const E*, i64, i64) { return sum; }
  static ZS_DEVICE Register load(const E* p) { return Io<E>::load(p); }
  static ZS_DEVICE Register splat(const E* p) { return broadcast(*p); }
  static ZS_DEVICE V add_product(V sum, Register a, Register b) { return sum + a * b; }
#if defined(__aarch64__)
  template <int Lane>
  static ZS_DEVICE V add_lane_product(V sum, Register a, Register b) {
    return ZS_NAMESPACE::add_lane_product<Lane>(sum, a, b);
  }
#endif

  // The values of a row of A: written a vector at a time, ended once, and read back.
  static ZS_DEVICE void write(E* row, i64, i64 at, V value, int n) { Io<E>::store_n(row + at, value, n); }
  static ZS_DEVICE void end(E*, i64, i64) {}
  static ZS_DEVICE V read(const E* row, i64, i64 at) { return Io<E>::load(row + at); }

  // Elements k, k+1, ... of a row of K values, as they lie in a register before the transposition.
  template <class S>
  static ZS_DEVICE V load_along(const S* row, i64 k, i64 K) {
    return Io<S>::load_n(row + k, static_cast<int>(min_of(L, K - k)));
  }
  // Element k of neighbouring columns; `load(k)` gives one row of values.
  template <class Load>
  static ZS_DEVICE V load_across(const Load& load, i64 k, i64) {
    return load(k);
  }
  // A register of B's elements, after the transposition.
  static ZS_DEVICE void store_right(E* p, V v) { Io<E>::store(p, v); }
};
template <class E>
constexpr i64 depth_of(i64 K) {
  return ceil_div(K, Operand<E>::kValues);
}

// Elements of 32 bits, as registers.
template <class Left>
struct Words {
  using Register = Simd<float>::Uint;
  static ZS_DEVICE Register load(const Left* p) {
    Register r;
    std::memcpy(&r, p, sizeof r);
    return r;
  }
  static ZS_DEVICE Register splat(const Left* p) {
    std::uint32_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return Register{} + bits;
  }
};

// The element types of a call whose arrays are stored as S: of large products and of the backward scan, and
// of the forward scan.
template <class S>
struct Elements {
  using Product = RealOf<S>;
  using State = RealOf<S>;
  using Stored = S;  // the weights before they are packed
};

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define ZS_MULTIPLIES_PAIRS

struct Pair {
  std::uint32_t bits;
};
// The hidden state is float from step to step, and a result may be off only by its own rounding. So the scan
// multiplies the state's leading 8 bits and the next 8, which are stored in two halves of a row.
struct SplitPair : Pair {};

template <>
struct Elements<Bfloat16> {
  using Product = Pair;
  using State = SplitPair;
  using Stored = Bfloat16;
};

template <>
struct Operand<Pair> : Words<Pair> {
  using Real = float;
  using V = VecF;
  using Left = Pair;
  using Sum = V;
  static constexpr int L = Simd<float>::lanes;
  static constexpr bool kPlain = false;
  static constexpr int kValues = 2;
  static constexpr int kTerms = 1;
  static constexpr int kTail = 0;
  static constexpr double kSpeed = 1;

  static ZS_DEVICE V finished(V sum, const Pair*, const Pair*, i64, i64) { return sum; }
#if defined(__AVX512BF16__)
  static ZS_DEVICE V add_product(V sum, Register a, Register b) {
    return bit_cast_to<V>(
        _mm512_dpbf16_ps(bit_cast_to<__m512>(sum), bit_cast_to<__m512bh>(a), bit_cast_to<__m512bh>(b)));
  }
#else
  static ZS_DEVICE V add_product(V sum, Register a, Register b) {
    return bit_cast_to<V>(vbfdotq_f32(bit_cast_to<float32x4_t>(sum), bit_cast_to<bfloat16x8_t>(a),
                                      bit_cast_to<bfloat16x8_t>(b)));
  }
  template <int Lane>
  static ZS_DEVICE V add_lane_product(V sum, Register a, Register b) {
    return bit_cast_to<V>(vbfdotq_laneq_f32(bit_cast_to<float32x4_t>(sum), bit_cast_to<bfloat16x8_t>(b),
                                            bit_cast_to<bfloat16x8_t>(a), Lane));
  }
#endif

  static ZS_DEVICE void write(Pair* row, i64, i64 at, V value, int n) {
    Io<Bfloat16>::store_n(reinterpret_cast<Bfloat16*>(row) + at, value, n);
  }
  static ZS_DEVICE void end(Pair* row, i64, i64 count) {
    if (count & 1) write(row, 0, count, V{}, 1);
  }

  static ZS_DEVICE V load_along(const Bfloat16* row, i64 k, i64 K) {
    const i64 n = min_of(2 * L, K - 2 * k);
#if defined(__AVX512BF16__)
    const auto mask = static_cast<__mmask32>(n == 32 ? 0xffffffffu : (1u << n) - 1u);
    return bit_cast_to<V>(_mm512_maskz_loadu_epi16(mask, row + 2 * k));
#else
    V pairs{};
    std::memcpy(&pairs, row + 2 * k, sizeof(Bfloat16) * static_cast<std::size_t>(n));
    return pairs;
#endif
  }
  static ZS_DEVICE V load_along(const float* row, i64 k, i64 K) {
    const i64 n = min_of(2 * L, K - 2 * k);
    HalfBits halves[2];
    for (int i = 0; i < 2; ++i)
      halves[i] =
          narrow(Io<float>::load_n(row + 2 * k + i * L, static_cast<int>(max_of(0, min_of(L, n - i * L)))),
                 Bfloat16{});
    V pairs;
    std::memcpy(&pairs, halves, sizeof pairs);
    return pairs;
  }
  template <class Load>
  static ZS_DEVICE V load_across(const Load& load, i64 k, i64 K) {
    const V first = load(2 * k);
    return interleave(first, 2 * k + 1 < K ? load(2 * k + 1) : V{});
  }
  static ZS_DEVICE void store_right(Pair* p, V v) { std::memcpy(static_cast<void*>(p), &v, sizeof v); }
  static ZS_DEVICE V interleave(V even, V odd) {
    const auto low = __builtin_convertvector(narrow(even, Bfloat16{}), Register);
    const auto high = __builtin_convertvector(narrow(odd, Bfloat16{}), Register);
    return bit_cast_to<V>(low | high << 16);
  }
};

template <>
struct Operand<SplitPair> : Operand<Pair> {
  using Left = SplitPair;
  static constexpr int kTerms = 2;

  static ZS_DEVICE void write(SplitPair* row, i64 lda, i64 at, V value, int n) {
    const V leading = widen(narrow(value, Bfloat16{}), Bfloat16{}), rest = value - leading;
    Operand<Pair>::write(row, lda, at, leading, n);
    // Infinity has no rest.
    Operand<Pair>::write(row + lda / 2, lda, at, rest == rest ? rest : V{}, n);
  }
  static ZS_DEVICE void end(SplitPair* row, i64 lda, i64 count) {
    if (count & 1) write(row, lda, count, V{}, 1);
  }
  static ZS_DEVICE V read(const SplitPair* row, i64 lda, i64 at) {
    return Io<Bfloat16>::load(reinterpret_cast<const Bfloat16*>(row) + at) +
           Io<Bfloat16>::load(reinterpret_cast<const Bfloat16*>(row + lda / 2) + at);
  }
};

#endif

// A register of elements, whatever they are.
template <class E, class V>
ZS_DEVICE void store_bits(E* p, V v) {
  std::memcpy(static_cast<void*>(p), &v, sizeof v);
}

}  // namespace ZS_NAMESPACE
