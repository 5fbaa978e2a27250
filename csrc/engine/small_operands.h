// Weights with fewer bits than the values they multiply, for prepared layers: bfloat16 and int8.
//
// An int8 weight has one scale per output row, and a row of A is quantised when it is multiplied
// (src/zstate/quantisation.py says how). Sums are integers: the same on every machine, for every number of
// threads. A row of A ends with its scale, a panel of B with the scales of its columns.
#pragma once

#include "engine/operand.h"

namespace ZS_NAMESPACE {

struct Bfloat16Weights {};
struct Int8Weights {};

// ---- bfloat16 ----

#if defined(ZS_MULTIPLIES_PAIRS)

template <>
struct Elements<Bfloat16Weights> {
  using Product = SplitPair;
  using State = SplitPair;
  using Stored = float;
};

#else

struct WideBfloat16 {  // becomes a float when it is loaded
  std::uint16_t bits;
};

template <>
struct Operand<WideBfloat16> : Operand<float> {
  using Operand<float>::load;
  static ZS_DEVICE Register load(const WideBfloat16* p) {
    HalfBits bits;
    std::memcpy(&bits, p, sizeof bits);
    return widen(bits, Bfloat16{});
  }
  static ZS_DEVICE V finished(V sum, const float*, const WideBfloat16*, i64, i64) { return sum; }
  static ZS_DEVICE void store_right(WideBfloat16* p, V v) { store_bits(p, narrow(v, Bfloat16{})); }
};

template <>
struct Elements<Bfloat16Weights> {
  using Product = WideBfloat16;
  using State = WideBfloat16;
  using Stored = float;
};

#endif

// ---- int8 ----

using IntF = Simd<float>::Int;
using UintF = Simd<float>::Uint;

// To the nearest integer; halves round to even.
ZS_DEVICE IntF rounded(VecF x) {
#if defined(__AVX512F__)
  return bit_cast_to<IntF>(_mm512_maskz_cvtps_epi32(0xffff, bit_cast_to<__m512>(x)));
#elif defined(__AVX__)
  return bit_cast_to<IntF>(_mm256_cvtps_epi32(bit_cast_to<__m256>(x)));
#elif defined(__x86_64__)
  return bit_cast_to<IntF>(_mm_cvtps_epi32(bit_cast_to<__m128>(x)));
#elif defined(__aarch64__)
  return bit_cast_to<IntF>(vcvtnq_s32_f32(bit_cast_to<float32x4_t>(x)));
#else
  IntF y;
  for (int i = 0; i < Simd<float>::lanes; ++i) y[i] = static_cast<std::int32_t>(__builtin_rintf(x[i]));
  return y;
#endif
}

template <int Bytes>
struct Ints {
  typedef std::int32_t Type __attribute__((vector_size(Bytes)));
};
template <int Bytes>
ZS_DEVICE std::int32_t largest_lane(typename Ints<Bytes>::Type v) {
  if constexpr (Bytes == 4) {
    return v[0];
  } else {
    typename Ints<Bytes / 2>::Type half[2];
    std::memcpy(half, &v, sizeof v);
    return largest_lane<Bytes / 2>(half[0] > half[1] ? half[0] : half[1]);
  }
}
inline constexpr std::int32_t kInfinityBits = 0x7f800000;

// What all int8 operands share. `Self` says how integers lie in an element.
template <class Self, class E>
struct IntegerOperand {
  using Real = float;
  using V = VecF;
  using Sum = IntF;
  static constexpr int L = Simd<float>::lanes;
  static constexpr bool kPlain = false;
  static constexpr int kTerms = 1;

  // A row of A as integers, and behind its `depth` elements the scale; load(k, lanes) gives its values.
  template <class Left, class Load>
  static void quantise(Left* row, i64 depth, i64 count, const Load& load) {
    // Sizes compare like their bits, and what is not finite is above all that is.
    const IntF sign = VectorMath<float>::sign_bit();
    IntF largest{};
    for (i64 k = 0; k < count; k += L) {
      const IntF size = bit_cast_to<IntF>(load(k, lanes(k, count))) & ~sign;
      largest = size > largest ? size : largest;
    }
    const std::int32_t bits = largest_lane<kVectorBytes>(largest);
    const bool finite = bits < kInfinityBits;
    float most;
    std::memcpy(&most, &bits, sizeof most);
    const float factor = 127.0f / most;
    const bool usable = finite && factor <= __FLT_MAX__;
    const float scale = usable ? most * (1.0f / 127.0f) : finite ? 0.0f : __builtin_nanf("");
    const V factors = broadcast(usable ? factor : 0.0f);
    i64 k = 0;
    for (; k + L <= count; k += L) Self::write(row, k, finite ? rounded(load(k, L) * factors) : IntF{}, L);
    if (k < count) {
      const int n = lanes(k, count);
      Self::write(row, k, finite ? rounded(load(k, n) * factors) : IntF{}, n);
    }
    std::memcpy(static_cast<void*>(row + depth), &scale, sizeof scale);
  }
  // The value of a sum, of the row of A that ends at `row` and a column of the panel that ends at `tail`.
  template <class Left>
  static ZS_DEVICE V finished(Sum sum, const Left* row, const E* tail, i64 ldb, i64 column) {
    float scale;
    std::memcpy(&scale, row, sizeof scale);
    const V scales = bits_at<V>(tail, column) * scale;
    return __builtin_convertvector(sum - Self::offset(tail, ldb, column), V) * scales;
  }
  // The scales of columns [column, column + lanes), which are rows of a weight; 0 of those beyond `rows`.
  static void write_tail(E* tail, i64 ldb, i64 column, const std::int8_t* row, i64 ld, int rows, int lanes,
                         i64 count, const float* scale) {
    for (int i = 0; i < lanes; ++i) {
      std::int32_t sum = 0;
      for (i64 k = 0; k < count && i < rows; ++k) sum += row[i * ld + k];
      const float each = i < rows ? scale[i] : 0.0f;
      set_word(tail, column + i, each);
      Self::set_offset(tail, ldb, column + i, sum);
    }
  }

 protected:
  // The low bytes of the first n values, to a row of bytes.
  template <class Left>
  static ZS_DEVICE void write_bytes(Left* row, i64 at, IntF values, int n) {
    typedef std::uint8_t Bytes __attribute__((vector_size(L)));
#if defined(__aarch64__)  // where GCC 12 takes every lane by itself
    const int16x4_t words = vmovn_s32(bit_cast_to<int32x4_t>(values));
    const auto all = vreinterpret_u32_s8(vmovn_s16(vcombine_s16(words, words)));
    const Bytes bytes = bit_cast_to<Bytes>(vget_lane_u32(all, 0));
#else
    const Bytes bytes = __builtin_convertvector(values, Bytes);
#endif
    char* to = reinterpret_cast<char*>(row) + at;
    if (n == L) [[likely]]
      std::memcpy(to, &bytes, L);
    else
      std::memcpy(to, &bytes, static_cast<std::size_t>(n));
  }
  static int lanes(i64 k, i64 count) { return static_cast<int>(min_of(L, count - k)); }
  // 32-bit words behind a panel, whatever its elements are.
  template <class T>
  static ZS_DEVICE T bits_at(const E* tail, i64 word) {
    T value;
    std::memcpy(&value, reinterpret_cast<const char*>(tail) + 4 * word, sizeof value);
    return value;
  }
  template <class T>
  static void set_word(E* tail, i64 word, T value) {
    std::memcpy(reinterpret_cast<char*>(tail) + 4 * word, &value, sizeof value);
  }
};

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define ZS_MULTIPLIES_OCTETS

// Eight neighbours along k in an element; one instruction multiplies two rows of A by two columns of B
// (octet_tile.h).
struct Octet {
  std::uint64_t bits;
};

template <>
struct Operand<Octet> : IntegerOperand<Operand<Octet>, Octet> {
  using Left = Octet;
  static constexpr int kValues = 8;
  static constexpr int kTail = 1;
  static constexpr double kSpeed = 8;
  typedef std::uint64_t Octets __attribute__((vector_size(8 * L)));

  static ZS_DEVICE void write(Octet* row, i64 at, IntF values, int n) { write_bytes(row, at, values, n); }
  static ZS_DEVICE Octets load_along(const std::int8_t* row, i64 k, i64 K) {
    Octets octets{};
    std::memcpy(&octets, row + 8 * k, static_cast<std::size_t>(min_of(8 * L, K - 8 * k)));
    return octets;
  }
  static ZS_DEVICE void store_right(Octet* p, Octets v) { store_bits(p, v); }
  static ZS_DEVICE IntF offset(const Octet*, i64, i64) { return IntF{}; }
  static void set_offset(Octet*, i64, i64, std::int32_t) {}
};
using Integers = Octet;

#elif defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__aarch64__)
#define ZS_MULTIPLIES_QUADS

// Four neighbours along k in an element; one instruction multiplies and adds all, four on ARM without dot
// products.
struct Quad {
  std::uint32_t bits;
};
#if defined(__aarch64__)
inline constexpr int kShift = 0;
#else
// These instructions take A without a sign: 128 is added to it, and 128 times the sum of a column's weights
// subtracted in the end. All modulo 2^32, where the result itself has room.
inline constexpr int kShift = 128;
#endif

template <>
struct Operand<Quad> : IntegerOperand<Operand<Quad>, Quad>, Words<Quad> {
  using Left = Quad;
  static constexpr int kValues = 4;
  static constexpr int kTail = kShift ? 2 : 1;
#if defined(__aarch64__) && !defined(__ARM_FEATURE_DOTPROD)
  static constexpr double kSpeed = 1.5;
#else
  static constexpr double kSpeed = 4;
#endif

#if defined(__AVX512VNNI__)
  static ZS_DEVICE Sum add_product(Sum sum, Register a, Register b) {
    return bit_cast_to<Sum>(
        _mm512_dpbusd_epi32(bit_cast_to<__m512i>(sum), bit_cast_to<__m512i>(a), bit_cast_to<__m512i>(b)));
  }
#elif defined(__AVXVNNI__)
  static ZS_DEVICE Sum add_product(Sum sum, Register a, Register b) {
    return bit_cast_to<Sum>(
        _mm256_dpbusd_avx_epi32(bit_cast_to<__m256i>(sum), bit_cast_to<__m256i>(a), bit_cast_to<__m256i>(b)));
  }
#elif defined(__ARM_FEATURE_DOTPROD)
  static ZS_DEVICE Sum add_product(Sum sum, Register a, Register b) {
    return bit_cast_to<Sum>(
        vdotq_s32(bit_cast_to<int32x4_t>(sum), bit_cast_to<int8x16_t>(b), bit_cast_to<int8x16_t>(a)));
  }
  template <int Lane>
  static ZS_DEVICE Sum add_lane_product(Sum sum, Register a, Register b) {
    return bit_cast_to<Sum>(vdotq_laneq_s32(bit_cast_to<int32x4_t>(sum), bit_cast_to<int8x16_t>(b),
                                            bit_cast_to<int8x16_t>(a), Lane));
  }
#else
  // The sum of two products has room in 16 bits.
  static ZS_DEVICE Sum add_product(Sum sum, Register a, Register b) {
    const auto left = bit_cast_to<int8x16_t>(a), right = bit_cast_to<int8x16_t>(b);
    const int16x8_t low = vmull_s8(vget_low_s8(left), vget_low_s8(right)), high = vmull_high_s8(left, right);
    return bit_cast_to<Sum>(vpadalq_s16(bit_cast_to<int32x4_t>(sum), vpaddq_s16(low, high)));
  }
  template <int Lane>
  static ZS_DEVICE Sum add_lane_product(Sum sum, Register a, Register b) {
    return add_product(sum, Register{} + a[Lane], b);
  }
#endif

  static ZS_DEVICE void write(Quad* row, i64 at, IntF values, int n) {
    write_bytes(row, at, values + kShift, n);
  }
  static ZS_DEVICE V load_along(const std::int8_t* row, i64 k, i64 K) {
    V quads{};
    std::memcpy(&quads, row + 4 * k, static_cast<std::size_t>(min_of(4 * L, K - 4 * k)));
    return quads;
  }
  static ZS_DEVICE void store_right(Quad* p, V v) { store_bits(p, v); }
  static ZS_DEVICE IntF offset(const Quad* tail, i64 ldb, i64 column) {
    return kShift ? bits_at<IntF>(tail, ldb + column) : IntF{};
  }
  static void set_offset(Quad* tail, i64 ldb, i64 column, std::int32_t sum) {
    if (kShift) set_word(tail, ldb + column, sum * kShift);
  }
};
using Integers = Quad;

#else

// Two neighbours in an element of B. They become 16 bits when they are loaded, as A's are: a sum of two
// products of 16 bits is exact, one of 8 bits is not always.
struct Twin {
  std::uint16_t bits;
};
struct Shorts {
  std::uint32_t bits;
};

template <>
struct Operand<Twin> : IntegerOperand<Operand<Twin>, Twin>, Words<Shorts> {
  using Left = Shorts;
  static constexpr int kValues = 2;
  static constexpr int kTail = 2;  // 32 bits
  static constexpr double kSpeed = 1.5;

  using Words<Shorts>::load;
#if defined(__AVX512BW__)
  static ZS_DEVICE Register load(const Twin* p) {
    return bit_cast_to<Register>(
        _mm512_maskz_cvtepi8_epi16(~__mmask32{0}, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
  }
  static ZS_DEVICE Sum add_product(Sum sum, Register a, Register b) {
    return sum + bit_cast_to<Sum>(_mm512_madd_epi16(bit_cast_to<__m512i>(a), bit_cast_to<__m512i>(b)));
  }
#elif defined(__AVX2__)
  static ZS_DEVICE Register load(const Twin* p) {
    return bit_cast_to<Register>(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static ZS_DEVICE Sum add_product(Sum sum, Register a, Register b) {
    return sum + bit_cast_to<Sum>(_mm256_madd_epi16(bit_cast_to<__m256i>(a), bit_cast_to<__m256i>(b)));
  }
#elif defined(__SSE4_1__)
  static ZS_DEVICE Register load(const Twin* p) {
    return bit_cast_to<Register>(_mm_cvtepi8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static ZS_DEVICE Sum add_product(Sum sum, Register a, Register b) {
    return sum + bit_cast_to<Sum>(_mm_madd_epi16(bit_cast_to<__m128i>(a), bit_cast_to<__m128i>(b)));
  }
#else
  static ZS_DEVICE Register load(const Twin* p) {
    HalfBits bits;
    std::memcpy(&bits, p, sizeof bits);
    return __builtin_convertvector(bits, Register);
  }
  static ZS_DEVICE Sum add_product(Sum sum, Register a, Register b) {
    const Sum low = bit_cast_to<Sum>(a << 16) >> 16, high = bit_cast_to<Sum>(a) >> 16;
    return sum + low * (bit_cast_to<Sum>(b << 24) >> 24) + high * (bit_cast_to<Sum>(b << 16) >> 24);
  }
#endif

  static ZS_DEVICE void write(Shorts* row, i64 at, IntF values, int n) {
    typedef std::int16_t Words __attribute__((vector_size(2 * L)));
    const Words words = __builtin_convertvector(values, Words);
    std::memcpy(reinterpret_cast<char*>(row) + 2 * at, &words, 2 * static_cast<std::size_t>(n));
  }
  static ZS_DEVICE V load_along(const std::int8_t* row, i64 k, i64 K) {
    HalfBits twins{};
    std::memcpy(&twins, row + 2 * k, static_cast<std::size_t>(min_of(2 * L, K - 2 * k)));
    return bit_cast_to<V>(__builtin_convertvector(twins, UintF));
  }
  static ZS_DEVICE void store_right(Twin* p, V v) {
    store_bits(p, __builtin_convertvector(bit_cast_to<UintF>(v), HalfBits));
  }
  static ZS_DEVICE IntF offset(const Twin*, i64, i64) { return IntF{}; }
  static void set_offset(Twin*, i64, i64, std::int32_t) {}
};
using Integers = Twin;

#endif

template <>
struct Elements<Int8Weights> {
  using Product = Integers;
  using State = Integers;
  using Stored = std::int8_t;
};

}  // namespace ZS_NAMESPACE
