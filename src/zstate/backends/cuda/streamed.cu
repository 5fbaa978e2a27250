// The product of up to sixteen rows with a matrix that does not fit on the chip: the matrix is read once, at the speed
// of its memory.
//
// One warp of a block copies long pieces of the matrix's rows into a ring of stages in shared memory; eight warps share
// what a stage holds. Only the operand comes from the launch before this one, so the ring is filled before waiting for
// it.

// In the order of streamed.py; all members are 64-bit words.
struct Streamed {
  const Stored *a, *b;  // [rows,lda], 0 from k on; along K [columns,ldb], across K [k,ldb]
  Stored* c;            // [pieces of K][rows,columns]
  i64 rows, columns, k, lda, ldb, pieces;
  i64 kept;  // how many of a block's stages are to stay in L2
};

constexpr int kWarps = 8, kThreads = 32 * (kWarps + 1), kPiece = 16 / kBytes;
constexpr int kSumRows = kManyRows ? 16 : 8;
// A stage: rows of the matrix, each padded so that lanes which read different rows meet few others in a bank.
constexpr int kStageRows = kAcross ? 16 : 8, kStride = kWidth + (kAcross ? 16 : 64);
constexpr int kStageBytes = kStageRows * kStride;

// The ring, as the copying warp and the others see it.
struct Ring {
  const u32 stages, barriers;
  int stage = 0;
  u32 turn = 0;  // parity of the round through the ring
  ZS_DEVICE Ring(char* shared) : stages(shared_address(shared)), barriers(stages + kStages * kStageBytes) {}
  ZS_DEVICE u32 full() const { return barriers + stage * 16; }
  ZS_DEVICE u32 empty() const { return barriers + stage * 16 + 8; }
  ZS_DEVICE u32 place() const { return stages + stage * kStageBytes; }
  ZS_DEVICE void open() const {
    for (int k = 0; k < kStages; ++k) {
      barrier_init(barriers + k * 16);
      barrier_init(barriers + k * 16 + 8, kWarps);
    }
    barrier_init_done();
  }
  ZS_DEVICE void advance() {
    if (++stage == kStages) {
      stage = 0;
      turn ^= 1;
    }
  }
  ZS_DEVICE void wait(u32 barrier, u32 parity) const {
    Patience patience;
    while (!barrier_passed(barrier, parity)) patience.look();
  }
  // The copying warp: a stage of `count` rows of so many bytes; lane by lane, row(k) says where the k-th begins.
  template <class Row>
  ZS_DEVICE void fill(int lane, int count, u32 bytes, u64 policy, const Row& row) {
    wait(empty(), turn ^ 1);
    if (lane == 0) barrier_expect(full(), count * bytes);
    __syncwarp();
    for (int k = lane; bytes != 0 && k < count; k += 32)
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0],[%1],%2,[%3],%4;" ::
              "r"(place() + k * kStride),
          "l"(row(k)), "r"(bytes), "r"(full()), "l"(policy)
          : "memory");
    advance();
  }
  ZS_DEVICE uint4 piece(int row, int byte) const {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(place() + row * kStride + byte)
                 : "memory");
    return weight_words(v);
  }
  // This warp has read the stage.
  ZS_DEVICE void release(int lane) {
    __syncwarp();
    if (lane == 0) barrier_arrive(empty());
    advance();
  }
};

ZS_DEVICE u64 policy(bool keep) {
  u64 p;
  if (keep)
    asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(p));
  else
    asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(p));
  return p;
}

// Numbers of a row of the operand from k on, as words; 0 beyond its end. Bypasses the first-level cache, where an
// earlier launch may have left old values.
template <int Words>
ZS_DEVICE void take_operand(const Streamed& s, i64 row, i64 k, u32 (&words)[Words]) {
#pragma unroll
  for (int e = 0; e < Words; ++e) words[e] = 0;
  if (row >= s.rows || k >= s.lda) return;
  const Stored* const from = s.a + row * s.lda + k;
  if constexpr (Words == 4)
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0,%1,%2,%3},[%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(from)
                 : "memory");
  else
    asm volatile("ld.relaxed.gpu.global.v2.b32 {%0,%1},[%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(from) : "memory");
}

// What a lane holds of an operand: rows g and g + 8.
template <int Words>
struct Fragment {
  u32 low[Words], high[Words];
  ZS_DEVICE void take(const Streamed& s, int lane, i64 k) {
    take_operand(s, lane / 4, k, low);
    if constexpr (kManyRows) take_operand(s, lane / 4 + 8, k, high);
  }
  // The half of a matrix instruction's K from word e on.
  ZS_DEVICE void times(float (&sum)[4], int e, u32 b0, u32 b1) const {
    mma(sum, low[e], kManyRows ? high[e] : 0, low[e + 1], kManyRows ? high[e + 1] : 0, b0, b1);
  }
};
ZS_DEVICE uint4 unless(bool outside, uint4 v) { return outside ? make_uint4(0, 0, 0, 0) : v; }

ZS_DEVICE void store_sum(const Streamed& s, i64 piece, i64 row, i64 column, float x) {
  if (row < s.rows && column < s.columns) put(s.c + (piece * s.rows + row) * s.columns + column, x);
}
// Of the warps that compute.
ZS_DEVICE void barrier_of_all() { asm volatile("bar.sync 1,%0;" ::"n"(32 * kWarps) : "memory"); }

// What both ways share: a thread's place in its block, and the block's piece of K.
struct Place {
  const Streamed& s;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 piece = blockIdx.x % s.pieces;
};

// Rows of b lie along K. A stage has kWidth bytes of eight rows, of which a warp has an eighth; its part of the operand
// stays in registers.
struct Along : Place {
  static constexpr int chunk = kWidth / kBytes, block_k = 64 / kBytes, deep = kWidth / (64 * kWarps);
  const i64 first = blockIdx.x / s.pieces, step = gridDim.x / s.pieces, groups = (s.columns + 7) / 8;

  ZS_DEVICE void copy(Ring ring) const {
    i64 filled = 0;
    for (i64 group = first; group < groups; group += step)
      for (int part = 0; part < kChunks; ++part, ++filled) {
        const i64 k = (piece * kChunks + part) * chunk;
        const i64 rows = min(8ll, s.columns - group * 8), numbers = max(0ll, min(static_cast<i64>(chunk), s.ldb - k));
        ring.fill(lane, static_cast<int>(rows), static_cast<u32>(numbers * kBytes), policy(filled < s.kept),
                  [&](int row) { return s.b + (group * 8 + row) * s.ldb + (numbers ? k : 0); });
      }
  }
  ZS_DEVICE void compute(Ring ring, char* shared) const {
    const i64 k0 = piece * kChunks * chunk + warp * deep * block_k + lane % 4 * kPiece;
    Fragment<4> x[kChunks * deep];
#pragma unroll
    for (int d = 0; d < kChunks * deep; ++d) x[d].take(s, lane, k0 + d / deep * chunk + d % deep * block_k);
    float (*sums)[kWarps][kSumRows][8] = reinterpret_cast<float (*)[kWarps][kSumRows][8]>(shared + kSums);
    int turn = 0;
#pragma unroll 1
    for (i64 group = first; group < groups; group += step) {
      float sum[2][4] = {};
#pragma unroll
      for (int part = 0; part < kChunks; ++part) {
        ring.wait(ring.full(), ring.turn);
        uint4 v[deep];
#pragma unroll
        for (int n = 0; n < deep; ++n) v[n] = ring.piece(lane / 4, (warp * deep + n) * 64 + lane % 4 * 16);
        ring.release(lane);
#pragma unroll
        for (int n = 0; n < deep; ++n) {
          const uint4 w = unless(k0 + part * chunk + n * block_k >= s.ldb, v[n]);
          x[part * deep + n].times(sum[0], 0, w.x, w.y);
          x[part * deep + n].times(sum[1], 2, w.z, w.w);
        }
      }
      auto& own = sums[turn];
      turn ^= 1;
#pragma unroll
      for (int e = 0; e < (kManyRows ? 4 : 2); ++e)
        own[warp][lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2] = sum[0][e] + sum[1][e];
      barrier_of_all();
      if (threadIdx.x < kSumRows * 8) {
        const int row = threadIdx.x / 8, at = threadIdx.x % 8;
        float x = own[0][row][at];
#pragma unroll
        for (int w = 1; w < kWarps; ++w) x += own[w][row][at];
        store_sum(s, piece, row, group * 8 + at, x);
      }
    }
  }
};

// Rows of b lie across K. A block has kWidth bytes of each row of its piece of K, a warp an eighth of these, and a
// stage has sixteen rows.
struct Across : Place {
  static constexpr int columns = kWidth / kBytes, own = columns / kWarps, tiles = own / 8;  // of a block, of a warp
  const i64 first = blockIdx.x / s.pieces * columns;
  const i64 begin = piece * ((s.k + kStageRows - 1) / kStageRows) / s.pieces * kStageRows;
  const i64 end = (piece + 1) * ((s.k + kStageRows - 1) / kStageRows) / s.pieces * kStageRows;

  ZS_DEVICE void copy(Ring ring) const {
    const u32 bytes = static_cast<u32>(min(static_cast<i64>(columns), s.ldb - first)) * kBytes;
    i64 filled = 0;
    for (i64 k = begin; k < end; k += kStageRows, ++filled)
      ring.fill(lane, static_cast<int>(min(static_cast<i64>(kStageRows), s.k - k)), bytes, policy(filled < s.kept),
                [&](int row) { return s.b + (k + row) * s.ldb + first; });
  }
  ZS_DEVICE void compute(Ring ring, char* shared) const {
    const int rows = lane % 4 * 4, column = (warp * own + lane / 4 * kPiece) * kBytes;
    constexpr int words = kBytes;  // of four numbers
    // The operand's numbers wait in the same queues as the matrix, so they are requested as early.
    constexpr int ahead = 6;
    Fragment<words> x[ahead];
    float sum[tiles][4] = {};
#pragma unroll
    for (int e = 0; e < ahead; ++e) x[e].take(s, lane, begin + e * kStageRows + rows);
#pragma unroll 1
    for (i64 k = begin + rows; k < end; k += kStageRows) {
      const int left = static_cast<int>(min(s.k - k, 4ll));  // of four rows; below 1: none
      ring.wait(ring.full(), ring.turn);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint4 v[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) v[n] = unless(n >= left, ring.piece(rows + n, column + half * own / 2 * kBytes));
        multiply(x[0], v, reinterpret_cast<float (&)[tiles / 2][4]>(sum[half * (tiles / 2)]));
      }
      ring.release(lane);
#pragma unroll
      for (int e = 1; e < ahead; ++e) x[e - 1] = x[e];
      x[ahead - 1].take(s, lane, k + ahead * kStageRows);
    }
    barrier_of_all();  // the ring is free: through it, neighbouring threads get neighbouring columns
    float (*sums)[columns] = reinterpret_cast<float (*)[columns]>(shared);
#pragma unroll
    for (int t = 0; t < tiles; ++t)
#pragma unroll
      for (int e = 0; e < (kManyRows ? 4 : 2); ++e) {
        // The n-th column of a tile is the t-th number of the n-th lane's piece.
        const int n = lane % 4 * 2 + e % 2, half = t / kPiece;
        sums[lane / 4 + e / 2 * 8][warp * own + half * own / 2 + n * kPiece + t % kPiece] = sum[t][e];
      }
    barrier_of_all();
    for (int at = threadIdx.x; at < kSumRows * columns; at += 32 * kWarps)
      store_sum(s, piece, at / columns, first + at % columns, sums[at / columns][at % columns]);
  }
  // Four rows of b times the operand's four numbers.
  static ZS_DEVICE void multiply(const Fragment<kBytes>& x, const uint4 (&v)[4], float (&sum)[tiles / 2][4]) {
#pragma unroll
    for (int t = 0; t < kPiece; ++t) {
      u32 b[4];
      if constexpr (kIsHalf) {
#pragma unroll
        for (int n = 0; n < 2; ++n)
          b[n] = __byte_perm(word(v[2 * n], t / 2), word(v[2 * n + 1], t / 2), t % 2 ? 0x7632 : 0x5410);
        x.times(sum[t], 0, b[0], b[1]);
      } else {
#pragma unroll
        for (int n = 0; n < 4; ++n) b[n] = word(v[n], t);
        x.times(sum[t], 0, b[0], b[1]);
        x.times(sum[t], 2, b[2], b[3]);
      }
    }
  }
  static ZS_DEVICE u32 word(const uint4& v, int n) { return n == 0 ? v.x : n == 1 ? v.y : n == 2 ? v.z : v.w; }
};

extern "C" __global__ void __launch_bounds__(kThreads, 1) streamed(const __grid_constant__ Streamed s) {
  extern __shared__ __align__(128) char shared[];
  Ring ring(shared);
  if (threadIdx.x == 0) ring.open();
  __syncthreads();
  const Select<kAcross, Across, Along>::type way{s};
  if (threadIdx.x >= 32 * kWarps) {
    way.copy(ring);
  } else {
    wait_for_earlier_launches();
    way.compute(ring, shared);
  }
  let_the_next_begin();  // it still waits for what is written here
}
