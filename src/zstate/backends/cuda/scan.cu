// The scan, forward and backward, for every cell: one launch for the whole sequence.
//
// Blocks work in groups of B: a group has one direction and MT tiles of 16 or 32 rows, a block UH units of it and the slice of the
// weight that these need, in registers, shared memory, or L2. Each phase of a step: gather the operand that all blocks of the group
// have made (shared memory; shared memory of the cluster; L2), multiply, add up over the warps, apply the cell, hand on.
// Tiles are independent, so one tile's exchange passes while another is computed.

using namespace zstate;
using Acts = FixedActivations<ACT0, ACT1, ACT2, ACT3, ACT4>;

struct Where {
  int d, row, unit, count, state;  // unit: of the layer; count: how many of the pair are inside H; state: place in the state
  bool on;                         // whether this thread has an item at all
  i64 gates, pair, mask;           // places in one step of [N,D,G,H], of [N,D,H] and of the mask
};
// A sum over time; in full float32 with what rounding has left of it, or long sequences would lose more than a tree of sums.
struct Sum {
  float2 sum, rest;
  ZS_DEVICE void add(float2 x) {
    if constexpr (TYPE == kFloat32) {
      x = {x.x - rest.x, x.y - rest.y};
      const float2 next = {__fadd_rn(sum.x, x.x), __fadd_rn(sum.y, x.y)};
      rest = {__fsub_rn(__fsub_rn(next.x, sum.x), x.x), __fsub_rn(__fsub_rn(next.y, sum.y), x.y)};
      sum = next;
    } else {
      sum = {sum.x + x.x, sum.y + x.y};
    }
  }
};
struct Sums {
  Sum bias[G], peephole[4], bias2;
};

ZS_DEVICE float2 plus(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
ZS_DEVICE float2 times(float2 a, float2 b) { return {a.x * b.x, a.y * b.y}; }
ZS_DEVICE float2 activated(int kind, float2 x) { return {activate(kind, Real{x.x}).v, activate(kind, Real{x.y}).v}; }
ZS_DEVICE float2 reset_gradient(const Acts& acts, float2 r, float2 dr) {
  return {gru_reset_gradient(acts, Real{r.x}, Real{dr.x}).v, gru_reset_gradient(acts, Real{r.y}, Real{dr.y}).v};
}

// Processing step s as a place in tensors that lie in the order of the input, or of the output.
ZS_DEVICE i64 in_time(const Arguments& a, const Where& w, i64 s) {
  return (D == 2 ? w.d == 1 : REVERSE) ? a.T - 1 - s : s;
}
ZS_DEVICE i64 out_time(const Arguments& a, const Where& w, i64 s) { return D == 2 && w.d == 1 ? a.T - 1 - s : s; }
// The step's part is the same for all threads, the other part for all steps: an addition is left to do.
ZS_DEVICE i64 pair_at(const Arguments& a, const Where& w, i64 t) { return t * a.step + w.pair; }
ZS_DEVICE i64 gates_at(const Arguments& a, const Where& w, i64 t) { return t * a.step * G + w.gates; }
ZS_DEVICE const Stored* mask_at(const Arguments& a, const Where& w, i64 s) { return a.mask + (in_time(a, w, s) * a.mask_t + w.mask); }
ZS_DEVICE void keep(const Where& w, float2* state, float2 x) {
  if (w.on) state[w.state] = x;
}
ZS_DEVICE float2 recall(const Where& w, const float2* state) { return w.on ? state[w.state] : make_float2(0.0f, 0.0f); }
ZS_DEVICE Pair take_mask(const Arguments& a, const Where& w, i64 s) {
  if constexpr (MASK_PAIRS) return take(mask_at(a, w, s), w.count);
  else return take_apart(mask_at(a, w, s), a.mask_h, w.count);
}

#if BACKWARD_TEXT
#include "backward.cuh"
#else
#include "forward.cuh"
#endif

template <int N> struct Number { static constexpr int value = N; };
template <bool First, class X, class Y> ZS_DEVICE auto& pick(X& x, Y& y) {
  if constexpr (First) return x;
  else return y;
}

extern "C" __global__ void __launch_bounds__(kThreads, RESIDENT) scan(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(128) char shared[];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, column = lane / 4, quarter = lane % 4;
  const int wk = warp % WK, wn = warp / WK;
  const int group = blockIdx.x / B, groups = gridDim.x / B;
  const int rank = blockIdx.x % B, d = group % D;
  const i64 tile_group = a.first_group + group / D;
  float2* const state = reinterpret_cast<float2*>(shared + kAtState);
  float* const partial = reinterpret_cast<float*>(shared + kAtSum);

  // ---- where things are
  auto operand_at = [&](auto phase, int tile, i64 index) {
    constexpr int P = decltype(phase)::value;
    return (P ? kAtOperand1 : kAtOperand0) + (static_cast<int>(index & 1) * MT + tile) * Phase<P>::tile_bytes;
  };
  auto exchange_at = [&](auto phase, int tile, i64 index) {
    constexpr int P = decltype(phase)::value;
    char* region = a.exchange;
    if constexpr (P == 1) region += a.T * groups * MT * Phase<0>::tile_bytes;
    return region + ((index * groups + group) * MT + tile) * Phase<P>::tile_bytes;
  };
  auto barrier_at = [&](int phase, int tile, i64 index) {
    return shared_address(shared) + ((phase * MT + tile) * 2 + static_cast<int>(index & 1)) * 8;
  };
  auto weight_at = [&](auto phase, int tile_column, int block) {
    using Ph = Phase<decltype(phase)::value>;
    const i64 unit = rank * UH + (wn * kUnitBlocks + tile_column / Ph::NG) * 8 + column;
    const int gate = Ph::first + tile_column % Ph::NG, in_gate = Ph::first + block / kGateK;
    const i64 row = BACKWARD ? unit * G + slot(in_gate) : static_cast<i64>(slot(gate)) * HP + unit;
    const Stored* from = a.weight + static_cast<i64>(d) * G * HP * HP + row * HP + (block % kGateK) * kBlockK;
    return reinterpret_cast<const uint4*>(from) + quarter;
  };
  // The same 16 bytes; where the weight is the caller's own, turned round and padded on the way.
  auto weight_from = [&](auto phase, int tile_column, int block) {
    if constexpr (!AS_IS || (!BACKWARD && HP == H)) return *weight_at(phase, tile_column, block);
    using Ph = Phase<decltype(phase)::value>;
    constexpr int count = 16 / kBytes;
    const int unit = rank * UH + (wn * kUnitBlocks + tile_column / Ph::NG) * 8 + column, k = (block % kGateK) * kBlockK + quarter * count;
    const int gate = slot(Ph::first + (BACKWARD ? block / kGateK : tile_column % Ph::NG));
    const Stored* from = a.weight + (static_cast<i64>(d) * G + gate) * H * H + (BACKWARD ? static_cast<i64>(k) * H + unit : static_cast<i64>(unit) * H + k);
    union { Stored value[count]; uint4 all; } found;
#pragma unroll
    for (int e = 0; e < count; ++e) found.value[e] = unit < H && k + e < H ? __ldg(from + e * (BACKWARD ? H : 1)) : Stored{};
    return found.all;
  };
  auto where = [&](int p, int tile) {
    Where w;
    w.d = d;
    int unit;
    if constexpr (kDirect) {  // where the matrix instruction leaves its results, and a neighbour's
      w.row = quarter * 2 + column % 2;
      w.on = w.row < RV;
      if (!w.on) w.row = 0;
      unit = (wn * kUnitBlocks + p) * 8 + column / 2 * 2;
    } else {
      const int item = p * kThreads + thread;
      w.on = kItems % kThreads == 0 || item < kItems;
      if constexpr (kWoven) {  // eight lanes have the same eight units of rows r and r + 8
        const int rows = item / 8 / (UH / 8);
        w.row = rows / 8 * 16 + rows % 8 + item / 4 % 2 * 8;
        unit = item / 8 % (UH / 8) * 8 + item % 4 * 2;
      } else {
        w.row = item / (UH / 2);
        unit = item % (UH / 2) * 2;
      }
      if (!w.on) w.row = unit = 0;
    }
    w.unit = rank * UH + unit;
    const i64 n = (tile_group * MT + tile) * kTileRows + w.row;
    w.count = !w.on || n >= a.N ? 0 : H - w.unit >= 2 ? 2 : H - w.unit > 0 ? H - w.unit : 0;
    w.state = (tile * RV + w.row) * (UH / 2) + unit / 2;
    w.pair = (n * D + d) * H + w.unit;
    w.gates = (n * D + d) * G * H + w.unit;
    w.mask = HAS_MASK ? n * a.mask_n + (static_cast<i64>(d) * H + w.unit) * a.mask_h : 0;
    return w;
  };

  // What was written a moment ago is in L2 still, unless it is much.
  const bool is_far = a.T * a.step * G * kBytes > kFar;

  // Whether any thread of this warp has a p-th item.
  auto idle = [&](int p) { return !kDirect && kItems % kThreads != 0 && p * kThreads + warp * 32 >= kItems; };

  // ---- the weight comes onto the chip once
  constexpr int R0 = KR0 > 0 ? KR0 : 1, R1 = KR1 > 0 ? KR1 : 1;
  uint4 held0[R0][Phase<0>::NT], held1[R1][Phase<1>::NT];
  auto hold = [&](auto phase, auto& held) {
    constexpr int P = decltype(phase)::value;
    using Ph = Phase<P>;
    uint4* stored = reinterpret_cast<uint4*>(shared + (P ? kAtWeight1 : kAtWeight0)) + warp * Ph::KS * Ph::NT * 32 + lane;
#pragma unroll
    for (int k = 0; k < Ph::KR; ++k)
#pragma unroll
      for (int n = 0; n < Ph::NT; ++n) {
        const int block = wk * Ph::KB + k;
        held[k][n] = block < Ph::blocks ? weight_words(weight_from(phase, n, block)) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll 4
    for (int k = 0; k < Ph::KS; ++k)
#pragma unroll
      for (int n = 0; n < Ph::NT; ++n) {
        const int block = wk * Ph::KB + Ph::KR + k;
        stored[(k * Ph::NT + n) * 32] = block < Ph::blocks ? weight_words(weight_from(phase, n, block)) : make_uint4(0, 0, 0, 0);
      }
  };
  hold(Number<0>{}, held0);
  if constexpr (kTwoPhases) hold(Number<1>{}, held1);

  // ---- the product of one tile; leaves one partial sum a warp in shared memory
  uint4 ahead[kAhead ? Phase<0>::CH : 1][kHalves];  // the first chunk of the next tile's operand
  auto multiply = [&](auto phase, auto& held, int tile, i64 index, float* sum, auto& acc) {
    constexpr int P = decltype(phase)::value;
    using Ph = Phase<P>;
    const uint4* stored = reinterpret_cast<const uint4*>(shared + (P ? kAtWeight1 : kAtWeight0)) + warp * Ph::KS * Ph::NT * 32 + lane;
    const char* rows;
    if constexpr (MODE == kGrid) rows = exchange_at(phase, tile, index);
    else rows = shared + operand_at(phase, tile, index);
    rows += wk * Ph::KB * RV * 64 + quarter * 16;
    const int blocks = Ph::blocks % WK == 0 ? Ph::KB : min(Ph::KB, Ph::blocks - wk * Ph::KB);
    auto load = [&](int k, int row) {
      const char* from = rows + (k * RV + row) * 64;
      if constexpr (MODE == kGrid) return load_relaxed(from);
      else return *reinterpret_cast<const uint4*>(from);
    };
    auto weight_stored = [&](int k, int n) { return stored[((k - Ph::KR) * Ph::NT + n) * 32]; };
    auto weight_streamed = [&](int k, int n) { return __ldg(weight_at(phase, n, wk * Ph::KB + k)); };
    float* const to = sum + wk * kSumSize + wn * kUnitBlocks * 8;

    if constexpr (TYPE == kFloat32) {
      // Plain multiply-add: a lane has one column and a quarter of the k-block, for all rows.
      float part_sum[Ph::NT][RV] = {};
#pragma unroll(RV <= 2 ? 4 : 1)
      for (int k = 0; k < blocks; ++k) {
        uint4 v[Ph::NT], x[RV];
#pragma unroll
        for (int r = 0; r < RV; ++r) x[r] = load(k, r);
#pragma unroll
        for (int n = 0; n < Ph::NT; ++n) v[n] = k < Ph::KS ? weight_stored(k, n) : weight_streamed(k, n);
        if constexpr (MODE == kGrid) {
          Patience patience;
          for (bool all = false; !all; patience.look()) {
            all = true;
#pragma unroll
            for (int r = 0; r < RV; ++r)
              if (missing(x[r])) { all = false; x[r] = load(k, r); }
          }
        }
#pragma unroll
        for (int r = 0; r < RV; ++r)
#pragma unroll
          for (int n = 0; n < Ph::NT; ++n) {
            float part = part_sum[n][r];
            part = fmaf(__uint_as_float(x[r].x), __uint_as_float(v[n].x), part);
            part = fmaf(__uint_as_float(x[r].y), __uint_as_float(v[n].y), part);
            part = fmaf(__uint_as_float(x[r].z), __uint_as_float(v[n].z), part);
            part_sum[n][r] = fmaf(__uint_as_float(x[r].w), __uint_as_float(v[n].w), part);
          }
      }
#pragma unroll
      for (int n = 0; n < Ph::NT; ++n)
#pragma unroll
        for (int r = 0; r < RV; ++r) {
          float part = part_sum[n][r];
          part += __shfl_xor_sync(~0u, part, 1);
          part += __shfl_xor_sync(~0u, part, 2);
          if (r % 4 == quarter) to[sum_row(r) + n % Ph::NG * UH + n / Ph::NG * 8 + column] = part;
        }
      return;
    }

#pragma unroll
    for (int s = 0; s < Ph::splits; ++s)
#pragma unroll
      for (int c = 0; c < Ph::chains; ++c) acc[s][c][0] = acc[s][c][1] = acc[s][c][2] = acc[s][c][3] = 0.0f;
    constexpr int CH = Ph::CH;
    constexpr int on_chip = Ph::KR + Ph::KS;
    const bool upper_row = RV >= 8 || column < RV;
    auto gather = [&](int first, uint4 (&x)[CH][kHalves], bool asked) {
      if (!asked) {
#pragma unroll
        for (int k = 0; k < CH; ++k)
#pragma unroll
          for (int h = 0; h < kHalves; ++h)
            x[k][h] = first + k < blocks && upper_row ? load(first + k, column + h * 8) : make_uint4(0, 0, 0, 0);
      }
      if constexpr (MODE == kGrid) {
        // Look again at all that is missing together: a look takes as long as the way to L2.
        Patience patience;
        for (bool all = false; !all; patience.look()) {
          all = true;
#pragma unroll
          for (int k = 0; k < CH; ++k)
#pragma unroll
            for (int h = 0; h < kHalves; ++h)
              if (missing(x[k][h])) { all = false; x[k][h] = load(first + k, column + h * 8); }
        }
      }
    };
    // All columns of the k-th of the k-blocks that were loaded together.
    auto add = [&](int k, const uint4 (&x)[kHalves], const auto& weight) {
      const int one = Ph::splits == 4 ? k % 2 * 2 : 0, two = Ph::splits == 1 ? 0 : one + 1;
      if constexpr (kTurned) {
#pragma unroll
        for (int c = 0; c < Ph::pairs; ++c) {
          const uint4 v = weight(2 * c), u = 2 * c + 1 < Ph::NT ? weight(2 * c + 1) : make_uint4(0, 0, 0, 0);
          mma(acc[one][c], v.x, u.x, v.y, u.y, x[0].x, x[0].y);
          mma(acc[two][c], v.z, u.z, v.w, u.w, x[0].z, x[0].w);
        }
      } else {
#pragma unroll
        for (int n = 0; n < Ph::NT; ++n) {
          const uint4 v = weight(n);
#pragma unroll
          for (int b = 0; b < kBands; ++b) {
            const uint4 &s = x[2 * b], &t = x[2 * b + 1];
            mma(acc[one][n * kBands + b], s.x, s.y, s.z, s.w, v.x, v.y);
            mma(acc[two][n * kBands + b], t.x, t.y, t.z, t.w, v.z, v.w);
          }
        }
      }
    };
    // The part of the weight in registers, with whatever else is in the same chunk; then from shared memory; then from L2.
    constexpr int held_end = Ph::KR == 0 ? 0 : CH < on_chip ? CH : on_chip;
    constexpr int stored_end = on_chip < Ph::KB ? held_end + (on_chip - held_end) / CH * CH : Ph::KB;
    if constexpr (held_end > 0) {
      uint4 fresh[CH][kHalves];
      auto& x = pick<kAhead>(ahead, fresh);
      gather(0, x, kAhead);
#pragma unroll
      for (int k = 0; k < held_end; ++k) {
        if (k >= blocks) break;
        add(k, x[k], [&](int n) { return k < Ph::KR ? held[k < Ph::KR ? k : 0][n] : weight_stored(k, n); });
      }
    }
#pragma unroll 1
    for (int first = held_end; first < stored_end && first < blocks; first += CH) {
      uint4 x[CH][kHalves];
      gather(first, x, false);
#pragma unroll
      for (int k = 0; k < CH; ++k) {
        if (first + k >= blocks || (stored_end % CH != held_end % CH && first + k >= stored_end)) break;
        add(k, x[k], [&](int n) { return weight_stored(first + k, n); });
      }
    }
    if constexpr (stored_end < Ph::KB) {
      // Always one k-block ahead of the product; a few of these may be in shared memory still.
      auto take = [&](int k, uint4 (&v)[Ph::NT]) {
#pragma unroll
        for (int n = 0; n < Ph::NT; ++n) v[n] = k < on_chip ? weight_stored(k, n) : weight_streamed(k, n);
      };
      uint4 v[2][Ph::NT];
      take(stored_end, v[0]);
      static_assert(CH % 2 == 0 || CH == Ph::KB, "the buffers alternate");
#pragma unroll 1
      for (int first = stored_end; first < blocks; first += CH) {
        uint4 x[CH][kHalves];
        gather(first, x, false);
#pragma unroll
        for (int k = 0; k < CH; ++k) {
          if (first + k >= blocks) break;
          take(min(first + k + 1, blocks - 1), v[(k + 1) & 1]);
          add(k, x[k], [&](int n) { return weight_words(v[k & 1][n]); });  // converted late: nothing waits for the load
        }
      }
    }
#pragma unroll
    for (int s = 1; s < Ph::splits; ++s)
#pragma unroll
      for (int c = 0; c < Ph::chains; ++c)
#pragma unroll
        for (int k = 0; k < 4; ++k) acc[0][c][k] += acc[s][c][k];
    if constexpr (!kDirect) {
#pragma unroll
      for (int n = 0; n < Ph::NT; ++n) {
        float* at = to + n % Ph::NG * UH + n / Ph::NG * 8;
        if constexpr (kTurned) {
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (quarter * 2 + e < RV) at[sum_row(quarter * 2 + e) + column] = acc[0][n / 2][n % 2 * 2 + e];
        } else {
#pragma unroll
          for (int h = 0; h < kHalves; ++h) {
            const float(&c)[4] = acc[0][n * kBands + h / 2];
            *reinterpret_cast<float2*>(at + sum_row(column + h * 8) + quarter * 2) = make_float2(c[h % 2 * 2], c[h % 2 * 2 + 1]);
          }
        }
      }
    }
  };

  // ---- hand an operand to every block of the group
  // Where the word lies that begins at the k-th byte of a row.
  auto operand_place = [&](int row, int k) {
    const int word = k % 64 / 4;
    if constexpr (!kWoven) return (k / 64 * RV + row) * 64 + k % 64;
    return (k / 64 * RV + row / 16 * 16 + word / 2 % 2 * 8 + row % 8) * 64 + word / 4 * 16 + (word % 2 * 2 + row / 8 % 2) * 4;
  };
  auto publish = [&](auto phase, const Where& w, int tile, i64 index, const float2 (&operand)[4]) {
    constexpr int P = decltype(phase)::value;
    using Ph = Phase<P>;
#pragma unroll
    for (int g = 0; g < Ph::KG; ++g) {
      u32 word[kPairWords];
      operand_pair({w.count > 0 ? operand[g].x : 0.0f, w.count > 1 ? operand[g].y : 0.0f}, word);
      const int k = (g * HP + w.unit) * kBytes;
      if constexpr (MODE == kGrid) {
        int place = operand_place(w.row, k);
        if constexpr (kWoven && kPairWords == 2) {
          // Of {x0, y0, x1, y1} the lane of row r stores the first two and that of r + 8 the others.
          const bool low = w.row / 8 % 2 == 0;
          const u32 other = __shfl_xor_sync(~0u, low ? word[kPairWords - 1] : word[0], 4);
          if (low) word[kPairWords - 1] = other;
          else word[0] = other;
          place = place / 16 * 16 + (low ? 0 : 8);
        }
        if (w.on) store_relaxed(exchange_at(phase, tile, index) + place, word);
      } else if constexpr (MODE == kBlock) {
#pragma unroll
        for (int v = 0; v < kPairWords; ++v)
          if (w.on) *reinterpret_cast<u32*>(shared + operand_at(phase, tile, index) + operand_place(w.row, k + v * 4)) = word[v];
      } else {
#if __CUDA_ARCH__ >= 900
        // Several lanes hold eight units, or the same units of two rows: vectors of 16 bytes, which these share out among
        // themselves; each lane sends one of them to some of the peers.
        constexpr int lanes = kWoven ? 8 : 4, vectors = kWoven ? 2 * kPairWords : kPairWords, each = kWoven ? lanes / vectors : lanes;
        const int member = kDirect ? lane / 8 : lane % lanes, part = kWoven ? member / vectors : member;
        auto from = [&](int other) { return kDirect ? other * 8 + lane % 8 : lane - lane % lanes + other; };
        const int base = operand_at(phase, tile, index), k8 = (g * HP + w.unit / 8 * 8) * kBytes;
        u32 sent[kWoven ? 1 : vectors][4];
        int place[kWoven ? 1 : vectors];
        if constexpr (kWoven) {
          const int v = member % vectors;
          place[0] = base + operand_place(w.row % 8 + w.row / 16 * 16, k8 + v * 8);
#pragma unroll
          for (int e = 0; e < 4; ++e)
            sent[0][e] = __shfl_sync(~0u, word[kPairWords == 2 ? e / 2 : 0], from((kPairWords == 2 ? v : 2 * v + e / 2) + e % 2 * 4));
        } else {
#pragma unroll
          for (int v = 0; v < vectors; ++v) {
            place[v] = base + operand_place(w.row, k8 + v * 16);
#pragma unroll
            for (int e = 0; e < 4; ++e) {
              const int at = v * 4 + e;
              sent[v][e] = __shfl_sync(~0u, word[at % kPairWords], from(at / kPairWords));
            }
          }
        }
        const u32 bell = barrier_at(P, tile, index);
        if (w.on) {
#pragma unroll
          for (int n = 0; n < (B + each - 1) / each; ++n) {
            if (B % each != 0 && n * each + part >= B) break;
            const u32 peer = (n * each + part + rank) % B;
#pragma unroll
            for (int v = 0; v < (kWoven ? 1 : vectors); ++v)
              send(on_peer(shared_address(shared) + place[v], peer), on_peer(bell, peer),
                   make_uint4(sent[v][0], sent[v][1], sent[v][2], sent[v][3]));
          }
        }
#endif
      }
    }
  };
  auto arm = [&](auto phase, int tile, i64 index) {
#if __CUDA_ARCH__ >= 900
    constexpr int P = decltype(phase)::value;
    if constexpr (MODE == kCluster)
      if (thread == 0) barrier_expect(barrier_at(P, tile, index), Phase<P>::tile_bytes);
#endif
  };
  auto wait = [&](auto phase, int tile, i64 index) {
    constexpr int P = decltype(phase)::value;
    if constexpr (MODE == kBlock) __syncthreads();
#if __CUDA_ARCH__ >= 900
    if constexpr (MODE == kCluster) {
      Patience patience;
      while (!barrier_passed(barrier_at(P, tile, index), static_cast<u32>(index >> 1) & 1)) patience.look();
    }
#endif
  };

  // ---- begin
#if __CUDA_ARCH__ >= 900
  if constexpr (MODE == kCluster) {
    if (thread == 0) {
      for (int k = 0; k < kPhases * MT * 2; ++k) barrier_init(shared_address(shared) + k * 8);
      barrier_init_done();
    }
    __syncthreads();
    for (int k = 0; k < 2; ++k)
      for (int tile = 0; tile < MT; ++tile) {
        arm(Number<0>{}, tile, k);
        if constexpr (kTwoPhases) arm(Number<1>{}, tile, k);
      }
    cluster_barrier();
  }
#endif
  Constants constants[kPerThread];
  Sums sums[kPerThread];
#pragma unroll
  for (int p = 0; p < kPerThread; ++p) {
    const Where w = where(p, 0);
    const int count = w.on ? min(max(H - w.unit, 0), 2) : 0;
    sums[p] = Sums{};
    if constexpr (HAS_PEEPHOLE) {
#pragma unroll
      for (int g = 0; g < 4; ++g) constants[p].peephole[g] = load_pair(a.peephole + (d * 4 + slot(g)) * H + w.unit, count);
    }
    if constexpr (HAS_BIAS2) constants[p].bias2 = load_pair(a.bias2 + d * H + w.unit, count);
  }
  for (int tile = 0; tile < MT; ++tile)
#pragma unroll
    for (int p = 0; p < kPerThread; ++p) {
      if (idle(p)) continue;
      const Where w = where(p, tile);
      begin(a, w, constants[p], state, [&](const float2 (&operand)[4]) { publish(Number<0>{}, w, tile, 0, operand); }, sums[p]);
    }

  // ---- every step
  // All of a warp's k-blocks, or the first of them, of a tile of 16 rows.
  auto look_ahead = [&](int tile, i64 index) {
    if (index >= a.T) return;
    const char* rows = exchange_at(Number<0>{}, tile, index) + wk * Phase<0>::KB * RV * 64 + quarter * 16;
#pragma unroll
    for (int k = 0; k < Phase<0>::CH; ++k)
#pragma unroll
      for (int h = 0; h < kHalves; ++h) ahead[k][h] = load_relaxed(rows + (k * RV + column + h * 8) * 64);
  };
  if constexpr (kAhead) look_ahead(0, 0);
  int turn = 0;
  auto work = [&](auto phase, auto& held, int tile, i64 index) {
    constexpr int P = decltype(phase)::value;
    using Ph = Phase<P>;
    Loaded in[kPerThread];
#pragma unroll
    for (int p = 0; p < kPerThread; ++p) {
      if (idle(p)) continue;
      const Where w = where(p, tile);
      fetch<P>(a, w, index, in[p]);
      if (is_far) fetch_ahead<P>(a, w, index);
    }
    float* sum = partial + turn * WK * kSumSize;
    turn ^= 1;
    wait(phase, tile, index);
    float acc[Ph::splits][Ph::chains][4];
    multiply(phase, held, tile, index, sum, acc);
    if constexpr (!kDirect) __syncthreads();
    arm(phase, tile, index);
#pragma unroll
    for (int p = 0; p < kPerThread; ++p) {
      if (idle(p)) continue;
      const Where w = where(p, tile);
      float2 total[G] = {};
      if constexpr (kDirect) {
        // One unit of two rows: lanes of neighbouring units swap, so that each has two units of one row.
#pragma unroll
        for (int g = 0; g < Ph::NG; ++g) {
          const int n = p * Ph::NG + g;
          const float(&c)[4] = acc[0][n / 2];
          const float one = c[n % 2 * 2], two = c[n % 2 * 2 + 1];
          const float other = __shfl_xor_sync(~0u, column % 2 ? one : two, 4);
          total[g] = column % 2 ? make_float2(other, two) : make_float2(one, other);
        }
      } else {
        const float* from = sum + sum_row(w.row) + (w.unit - rank * UH);
#pragma unroll
        for (int g = 0; g < Ph::NG; ++g)
#pragma unroll
          for (int k = 0; k < WK; ++k)
            total[g] = plus(total[g], *reinterpret_cast<const float2*>(from + k * kSumSize + g * UH));
      }
      auto hand_on = [&](const float2 (&operand)[4]) {
        constexpr int next = kTwoPhases && P == 0 ? 1 : 0;
        const i64 next_index = next ? index : index + 1;
        if (next_index < a.T) publish(Number<next>{}, w, tile, next_index, operand);
      };
      consume<P>(a, w, index, Inputs(in[p]), constants[p], total, state, hand_on, sums[p]);
    }
    if constexpr (kAhead) look_ahead(tile + 1 < MT ? tile + 1 : 0, tile + 1 < MT ? index : index + 1);
  };
#pragma unroll 1
  for (i64 index = 0; index < a.T; ++index) {
#pragma unroll 1
    for (int tile = 0; tile < MT; ++tile) work(Number<0>{}, held0, tile, index);
    if constexpr (kTwoPhases) {
#pragma unroll 1
      for (int tile = 0; tile < MT; ++tile) work(Number<1>{}, held1, tile, index);
    }
  }

  // ---- end
#if BACKWARD_TEXT
  // Sums over time, then over the rows of the group: fixed order, no atomics.
#pragma unroll
  for (int q = 0; q < kQuantities; ++q) {
    Summed* const to = sum_place(a, q, d) + tile_group * a.sum_stride + rank * UH;
    auto put_pair = [&](int unit, float2 x) {
      if (rank * UH + unit < H) put(to + unit, x.x);
      if (rank * UH + unit + 1 < H) put(to + unit + 1, x.y);
    };
    if constexpr (kDirect) {
#pragma unroll
      for (int u = 0; u < kUnitBlocks; ++u) {
        float2 x = quantity(sums[u], q);
#pragma unroll
        for (int away = 1; away < 8; away *= 2)  // lanes with other rows of the same units
          x = plus(x, {__shfl_xor_sync(~0u, x.x, away), __shfl_xor_sync(~0u, x.y, away)});
        if (lane % 8 == 0) put_pair((wn * kUnitBlocks + u) * 8 + column, x);
      }
    } else {
      float2* const rows = reinterpret_cast<float2*>(partial);
      __syncthreads();
#pragma unroll
      for (int p = 0; p < kPerThread; ++p)
        if (const Where w = where(p, 0); w.on) rows[w.state] = quantity(sums[p], q);
      __syncthreads();
#pragma unroll 1
      for (int pair = thread; pair < UH / 2; pair += kThreads) {
        Sum x = {};
#pragma unroll 1
        for (int r = 0; r < RV; ++r) x.add(rows[r * (UH / 2) + pair]);
        put_pair(pair * 2, x.sum);
      }
    }
  }
#endif
#if __CUDA_ARCH__ >= 900
  if constexpr (MODE == kCluster) cluster_barrier();  // no block may leave while a peer still sends to it
#endif
}
