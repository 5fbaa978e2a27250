// The kernel of tile.h with ARM's matrix products: one instruction multiplies eight values of k of two rows
// of A by those of two columns of B, twice the work of a dot product of four.
#pragma once

#include "engine/ahead.h"
#include "engine/small_operands.h"

namespace ZS_NAMESPACE {

#if !defined(ZS_MULTIPLIES_OCTETS)

template <class E>
inline constexpr bool kMultipliesOctets = false;

#else

template <class E>
inline constexpr bool kMultipliesOctets = kSameType<E, Octet>;

ZS_DEVICE int8x8_t load_row(const Octet* p) { return vld1_s8(reinterpret_cast<const std::int8_t*>(p)); }
ZS_DEVICE int8x16_t load_columns(const Octet* p) { return vld1q_s8(reinterpret_cast<const std::int8_t*>(p)); }

// c[r][j] (+)= sum over k of a[r·lda + k]·b[k][j], two rows at a time; an odd last one beside zeros. There
// are sums enough for one row too: Chains says nothing.
template <class E, int Rows, int Vectors, int Chains, bool Interleaved, class R = float>
  requires kMultipliesOctets<E>
void tile_product(i64 K, const E* a, i64 lda, const E* b, i64 ldb, R* c, i64 ldc, bool accumulate, Ahead) {
  using Op = Operand<E>;
  constexpr int L = Op::L, Pairs = (Rows + 1) / 2;
  int32x4_t sum[Pairs][Vectors][2];  // of two columns: both of a row, then both of the next
#pragma GCC unroll 4
  for (int p = 0; p < Pairs; ++p)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) sum[p][v][0] = sum[p][v][1] = int32x4_t{};
  for (i64 k = 0; k < K; ++k, b += ldb) {
    int8x16_t rows[Pairs];
#pragma GCC unroll 4
    for (int p = 0; p < Pairs; ++p) {
      const E* row = a + 2 * p * lda + k;
      rows[p] = vcombine_s8(load_row(row), 2 * p + 1 < Rows ? load_row(row + lda) : int8x8_t{});
    }
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const int8x16_t columns = load_columns(b + v * L + half * (L / 2));
#pragma GCC unroll 4
        for (int p = 0; p < Pairs; ++p) sum[p][v][half] = vmmlaq_s32(sum[p][v][half], rows[p], columns);
      }
  }
  const auto store = [&](int r, int v, int64x2_t values) {
    R* out = c + r * ldc + v * L;
    const auto value = Op::finished(bit_cast_to<IntF>(values), a + r * lda + K, b, ldb, v * L);
    Io<R>::store(out, accumulate ? Io<R>::load(out) + value : value);
  };
#pragma GCC unroll 4
  for (int p = 0; p < Pairs; ++p)
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      const auto first = vreinterpretq_s64_s32(sum[p][v][0]), second = vreinterpretq_s64_s32(sum[p][v][1]);
      store(2 * p, v, vzip1q_s64(first, second));
      if (2 * p + 1 < Rows) store(2 * p + 1, v, vzip2q_s64(first, second));
    }
}

#endif

}  // namespace ZS_NAMESPACE
