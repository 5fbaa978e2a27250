// The recurrent product of one tile: the block's slice of the weight, held on the chip, times the operand.
#pragma once

// The slice of a warp: its first k-blocks in registers, the next in shared memory, the rest read from L2 at every step.
template <int P>
struct Weight {
  using Here = Phase<P>;
  uint4 held[Here::held > 0 ? Here::held : 1][Here::columns];

  ZS_DEVICE void load(const Block& block) {
#pragma unroll
    for (int k = 0; k < Here::held; ++k)
#pragma unroll
      for (int n = 0; n < Here::columns; ++n) held[k][n] = first_read(block, n, block.warp_k * Here::warp_blocks + k);
    uint4* const to = in_shared(block);
#pragma unroll 4
    for (int k = 0; k < Here::stored; ++k)
#pragma unroll
      for (int n = 0; n < Here::columns; ++n)
        to[(k * Here::columns + n) * 32] = first_read(block, n, block.warp_k * Here::warp_blocks + Here::held + k);
  }
  // 16 bytes of the n-th column and the k-th k-block of the warp.
  static ZS_DEVICE uint4 stored(const Block& block, int k, int n) {
    return in_shared(block)[((k - Here::held) * Here::columns + n) * 32];
  }
  static ZS_DEVICE uint4 streamed(const Block& block, int k, int n) {
    const int k_block = block.warp_k * Here::warp_blocks + k;
    if (is_none(n, k_block)) return make_uint4(0, 0, 0, 0);
    return __ldg(padded_weight(block, n, k_block));
  }

 private:
  // Whether there is no gate's weight.
  static ZS_DEVICE bool is_none(int n, int k_block) {
    return !Here::is_full && slot_of<P>(n % Here::outs, k_block / kGateBlocks) < 0;
  }
  static ZS_DEVICE uint4* in_shared(const Block& block) {
    return reinterpret_cast<uint4*>(block.shared + At<P>::weight) + block.warp * Here::stored * Here::columns * 32 +
           block.lane;
  }
  static ZS_DEVICE int unit(const Block& block, int n) {
    return block.rank * kUnits + (block.warp_n * kUnitTiles + n / Here::outs) * 8 + block.column;
  }
  // Of a padded weight whose rows lie along K: forward [D,G,padded,padded], backward [D,padded,G,padded].
  static ZS_DEVICE const uint4* padded_weight(const Block& block, int n, int k_block) {
    const i64 row_unit = unit(block, n);
    const int gate = slot_of<P>(n % Here::outs, k_block / kGateBlocks);
    const i64 row = kBackward ? row_unit * kGates + gate : static_cast<i64>(gate) * kPadded + row_unit;
    const Stored* from = block.a.weight + static_cast<i64>(block.chain) * kGates * kPadded * kPadded + row * kPadded +
                         (k_block % kGateBlocks) * kBlockK;
    return reinterpret_cast<const uint4*>(from) + block.quarter;
  }
  // Of the caller's own weight [D,G,H,H], transposed and padded on the way. The compiler may load before it
  // tests whether it should, so reads outside the layer go to its edge.
  static ZS_DEVICE uint4 own_weight(const Block& block, int n, int k_block) {
    constexpr int count = 16 / kBytes;
    const int row = unit(block, n), k = (k_block % kGateBlocks) * kBlockK + block.quarter * count;
    const int gate = slot_of<P>(n % Here::outs, k_block / kGateBlocks);
    const Stored* const from = block.a.weight + (static_cast<i64>(block.chain) * kGates + gate) * kHidden * kHidden +
                               static_cast<i64>(min(row, kHidden - 1)) * (kBackward ? 1 : kHidden);
    union {
      Stored value[count];
      uint4 all;
    } words;
#pragma unroll
    for (int e = 0; e < count; ++e) {
      const Stored value = __ldg(from + min(k + e, kHidden - 1) * (kBackward ? kHidden : 1));
      words.value[e] = row < kHidden && k + e < kHidden ? value : Stored{};
    }
    return words.all;
  }
  static ZS_DEVICE uint4 first_read(const Block& block, int n, int k_block) {
    if (k_block >= Here::k_blocks || is_none(n, k_block)) return make_uint4(0, 0, 0, 0);
    if constexpr (!kHoldsAll || (!kBackward && kPadded == kHidden))
      return weight_words(*padded_weight(block, n, k_block));
    else
      return weight_words(own_weight(block, n, k_block));
  }
};

// Multiplies a tile's operand by the weight. Sums stay in `sum` where a warp has all of K (kDirect); otherwise each
// warp leaves its partial sum in shared memory.
template <int P>
struct Product {
  using Here = Phase<P>;
  float sum[Here::splits][Here::chains][4];

  ZS_DEVICE void multiply(const Block& block, const Weight<P>& weight, const Operand<P>& operand, Ahead& ahead,
                          float* partial) {
    float* const to = partial + block.warp_k * kSumSize + block.warp_n * kUnitTiles * 8;
    if constexpr (kType == kFloat32) {
      multiply_add(block, operand, to);
    } else {
#pragma unroll
      for (int s = 0; s < Here::splits; ++s)
#pragma unroll
        for (int c = 0; c < Here::chains; ++c) sum[s][c][0] = sum[s][c][1] = sum[s][c][2] = sum[s][c][3] = 0.0f;
      multiply_held(block, weight, operand, ahead);
      multiply_stored(block, operand);
      if constexpr (stored_end < Here::warp_blocks) multiply_streamed(block, operand);
#pragma unroll
      for (int s = 1; s < Here::splits; ++s)
#pragma unroll
        for (int c = 0; c < Here::chains; ++c)
#pragma unroll
          for (int k = 0; k < 4; ++k) sum[0][c][k] += sum[s][c][k];
      if constexpr (!kDirect) store(block, to);
    }
  }

  // The sums of an item: a pair for each gate that comes out.
  ZS_DEVICE void total(const Block& block, const Item& w, int p, const float* partial, float2 (&total)[kWidest]) const {
    if constexpr (kDirect) {
      // A lane has one unit of two rows. Lanes of neighbouring units swap, so that each has two units of one row.
#pragma unroll
      for (int g = 0; g < Here::outs; ++g) {
        const int n = p * Here::outs + g;
        const float (&c)[4] = sum[0][n / 2];
        const float one = c[n % 2 * 2], two = c[n % 2 * 2 + 1];
        const float other = __shfl_xor_sync(~0u, block.column % 2 ? one : two, 4);
        total[g] = block.column % 2 ? make_float2(other, two) : make_float2(one, other);
      }
    } else {
      const float* from = partial + sum_row(w.row) + (w.unit - block.rank * kUnits);
#pragma unroll
      for (int g = 0; g < Here::outs; ++g)
#pragma unroll
        for (int k = 0; k < kWarpsK; ++k)
          total[g] = total[g] + *reinterpret_cast<const float2*>(from + k * kSumSize + g * kUnits);
    }
  }

 private:
  using Chunk = typename Operand<P>::Chunk;
  static constexpr int chunk = Here::chunk;
  static constexpr int on_chip = Here::held + Here::stored;
  // The k-blocks in registers, with whatever else is in the same chunk; then those in shared memory; then those in L2.
  static constexpr int held_end = Here::held == 0 ? 0 : chunk < on_chip ? chunk : on_chip;
  static constexpr int stored_end =
      on_chip < Here::warp_blocks ? held_end + (on_chip - held_end) / chunk * chunk : Here::warp_blocks;

  // Multiplies all columns by the k-th of the k-blocks that were loaded together.
  template <class Columns>
  ZS_DEVICE void add(int k, const uint4 (&x)[kRowEights], const Columns& weight) {
    const int one = Here::splits == 4 ? k % 2 * 2 : 0, two = Here::splits == 1 ? 0 : one + 1;
    if constexpr (kTransposed) {
#pragma unroll
      for (int c = 0; c < Here::column_pairs; ++c) {
        const uint4 v = weight(2 * c), u = 2 * c + 1 < Here::columns ? weight(2 * c + 1) : make_uint4(0, 0, 0, 0);
        mma(sum[one][c], v.x, u.x, v.y, u.y, x[0].x, x[0].y);
        mma(sum[two][c], v.z, u.z, v.w, u.w, x[0].z, x[0].w);
      }
    } else {
#pragma unroll
      for (int n = 0; n < Here::columns; ++n) {
        const uint4 v = weight(n);
#pragma unroll
        for (int b = 0; b < kRowSixteens; ++b) {
          const uint4 &s = x[2 * b], &t = x[2 * b + 1];
          mma(sum[one][n * kRowSixteens + b], s.x, s.y, s.z, s.w, v.x, v.y);
          mma(sum[two][n * kRowSixteens + b], t.x, t.y, t.z, t.w, v.z, v.w);
        }
      }
    }
  }
  ZS_DEVICE void multiply_held(const Block& block, const Weight<P>& weight, const Operand<P>& operand, Ahead& ahead) {
    if constexpr (held_end > 0) {
      Chunk fresh;
      auto& x = chosen(fresh, ahead);
      operand.gather(0, x, kAhead);
#pragma unroll
      for (int k = 0; k < held_end; ++k) {
        if (k >= operand.k_blocks) break;
        add(k, x[k], [&](int n) {
          return k < Here::held ? weight.held[k < Here::held ? k : 0][n] : Weight<P>::stored(block, k, n);
        });
      }
    }
  }
  ZS_DEVICE void multiply_stored(const Block& block, const Operand<P>& operand) {
#pragma unroll 1
    for (int first = held_end; first < stored_end && first < operand.k_blocks; first += chunk) {
      Chunk x;
      operand.gather(first, x, false);
#pragma unroll
      for (int k = 0; k < chunk; ++k) {
        if (first + k >= operand.k_blocks) break;
        if (stored_end % chunk != held_end % chunk && first + k >= stored_end) break;
        add(k, x[k], [&](int n) { return Weight<P>::stored(block, first + k, n); });
      }
    }
  }
  // Always one k-block ahead of the product; some k-blocks may still be in shared memory.
  ZS_DEVICE void multiply_streamed(const Block& block, const Operand<P>& operand) {
    auto take = [&](int k, uint4(&v)[Here::columns]) {
#pragma unroll
      for (int n = 0; n < Here::columns; ++n)
        v[n] = k < on_chip ? Weight<P>::stored(block, k, n) : Weight<P>::streamed(block, k, n);
    };
    uint4 v[2][Here::columns];
    take(stored_end, v[0]);
    static_assert(chunk % 2 == 0 || chunk == Here::warp_blocks, "the buffers alternate");
#pragma unroll 1
    for (int first = stored_end; first < operand.k_blocks; first += chunk) {
      Chunk x;
      operand.gather(first, x, false);
#pragma unroll
      for (int k = 0; k < chunk; ++k) {
        if (first + k >= operand.k_blocks) break;
        take(min(first + k + 1, operand.k_blocks - 1), v[(k + 1) & 1]);
        // Converted late, so that nothing waits for the load.
        add(k, x[k], [&](int n) { return weight_words(v[k & 1][n]); });
      }
    }
  }
  ZS_DEVICE void store(const Block& block, float* to) const {
    const int column = block.column, quarter = block.quarter;
#pragma unroll
    for (int n = 0; n < Here::columns; ++n) {
      float* at = to + n % Here::outs * kUnits + n / Here::outs * 8;
      if constexpr (kTransposed) {
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (quarter * 2 + e < kRows) at[sum_row(quarter * 2 + e) + column] = sum[0][n / 2][n % 2 * 2 + e];
      } else {
#pragma unroll
        for (int h = 0; h < kRowEights; ++h) {
          const float (&c)[4] = sum[0][n * kRowSixteens + h / 2];
          *reinterpret_cast<float2*>(at + sum_row(column + h * 8) + quarter * 2) =
              make_float2(c[h % 2 * 2], c[h % 2 * 2 + 1]);
        }
      }
    }
  }

  // Full float32, by multiply-adds: a lane has one column and a quarter of the k-block, for all rows.
  ZS_DEVICE void multiply_add(const Block& block, const Operand<P>& operand, float* to) {
    float parts[Here::columns][kRows] = {};
#pragma unroll(kRows <= 2 ? 4 : 1)
    for (int k = 0; k < operand.k_blocks; ++k) {
      uint4 v[Here::columns], x[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) x[r] = operand.load(k, r);
#pragma unroll
      for (int n = 0; n < Here::columns; ++n)
        v[n] = k < Here::stored ? Weight<P>::stored(block, k, n) : Weight<P>::streamed(block, k, n);
      if constexpr (kMode == kGrid) {
        Patience patience;
        for (bool all = false; !all; patience.look()) {
          all = true;
#pragma unroll
          for (int r = 0; r < kRows; ++r)
            if (missing(x[r])) {
              all = false;
              x[r] = operand.load(k, r);
            }
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int n = 0; n < Here::columns; ++n) {
          float part = parts[n][r];
          part = fmaf(__uint_as_float(x[r].x), __uint_as_float(v[n].x), part);
          part = fmaf(__uint_as_float(x[r].y), __uint_as_float(v[n].y), part);
          part = fmaf(__uint_as_float(x[r].z), __uint_as_float(v[n].z), part);
          parts[n][r] = fmaf(__uint_as_float(x[r].w), __uint_as_float(v[n].w), part);
        }
    }
#pragma unroll
    for (int n = 0; n < Here::columns; ++n)
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float part = parts[n][r];
        part += __shfl_xor_sync(~0u, part, 1);
        part += __shfl_xor_sync(~0u, part, 2);
        if (r % 4 == block.quarter) to[sum_row(r) + n % Here::outs * kUnits + n / Here::outs * 8 + block.column] = part;
      }
  }

  static ZS_DEVICE auto& chosen(Chunk& fresh, Ahead& ahead) {
    if constexpr (kAhead)
      return ahead;
    else
      return fresh;
  }
};
