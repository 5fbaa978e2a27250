// The exchange: every block of a group makes its units' part of the next operand, and needs the parts of all others.
//
// An operand lies as [k-block][row][64 bytes], so that a warp loads a k-block in one piece. It passes through
// - shared memory, inside one block;
// - the shared memory of every peer, inside a cluster: stores that a barrier counts;
// - L2, over the whole grid: memory of all ones, which a consumer reads until the operand is there.
// All but the grid have two places per tile, used in turn; the grid has one per step.
#pragma once

template <int P>
struct Exchange {
  using Here = Phase<P>;

  // The offset of an operand in shared memory.
  static ZS_DEVICE int in_shared(int tile, i64 index) {
    return At<P>::operand + (static_cast<int>(index & 1) * kTiles + tile) * Here::tile_bytes;
  }
  static ZS_DEVICE char* in_l2(const Block& block, int tile, i64 index) {
    char* region = block.a.exchange + block.a.T * block.groups * kTiles * Before<P>::tiles;
    return region + ((index * block.groups + block.group) * kTiles + tile) * Here::tile_bytes;
  }
  static ZS_DEVICE u32 barrier(const Block& block, int tile, i64 index) {
    return shared_address(block.shared) + ((P * kTiles + tile) * 2 + static_cast<int>(index & 1)) * 8;
  }

  // The offset of the word that begins at byte k of a row.
  static ZS_DEVICE int offset(int row, int k) {
    const int word = k % 64 / 4;
    if constexpr (!kInterleaved) return (k / 64 * kRows + row) * 64 + k % 64;
    return (k / 64 * kRows + row / 16 * 16 + word / 2 % 2 * 8 + row % 8) * 64 + word / 4 * 16 +
           (word % 2 * 2 + row / 8 % 2) * 4;
  }

  // Hands an item's part of an operand to every block of the group.
  static ZS_DEVICE void publish(const Block& block, const Item& w, int tile, i64 index,
                                const float2 (&operand)[kWidest]) {
#pragma unroll
    for (int g = 0; g < Here::ins; ++g) {
      u32 word[kPairWords];
      operand_pair({w.count > 0 ? operand[g].x : 0.0f, w.count > 1 ? operand[g].y : 0.0f}, word);
      if constexpr (kMode == kGrid) publish_to_grid(block, w, tile, index, g, word);
      if constexpr (kMode == kCluster) publish_to_cluster(block, w, tile, index, g, word);
      if constexpr (kMode == kBlock) publish_to_block(block, w, tile, index, g, word);
    }
  }
  static ZS_DEVICE void publish_to_block(const Block& block, const Item& w, int tile, i64 index, int gate,
                                         const u32 (&word)[kPairWords]) {
    const int k = (gate * kPadded + w.unit) * kBytes;
#pragma unroll
    for (int v = 0; v < kPairWords; ++v)
      if (w.on) *reinterpret_cast<u32*>(block.shared + in_shared(tile, index) + offset(w.row, k + v * 4)) = word[v];
  }
  static ZS_DEVICE void publish_to_grid(const Block& block, const Item& w, int tile, i64 index, int gate,
                                        u32 (&word)[kPairWords]) {
    int place = offset(w.row, (gate * kPadded + w.unit) * kBytes);
    if constexpr (kInterleaved && kPairWords == 2) {
      // Of {x0, y0, x1, y1} the lane of row r stores the first two and that of r + 8 the others.
      const bool low = w.row / 8 % 2 == 0;
      const u32 other = __shfl_xor_sync(~0u, low ? word[kPairWords - 1] : word[0], 4);
      if (low)
        word[kPairWords - 1] = other;
      else
        word[0] = other;
      place = place / 16 * 16 + (low ? 0 : 8);
    }
    if (w.on) store_relaxed(in_l2(block, tile, index) + place, word);
  }
  // Several lanes hold eight units, or the same units of two rows. They regroup their words into vectors of 16 bytes,
  // and each lane sends a vector to some of the peers.
  static ZS_DEVICE void publish_to_cluster(const Block& block, const Item& w, int tile, i64 index, int gate,
                                           const u32 (&word)[kPairWords]) {
#if __CUDA_ARCH__ >= 900
    constexpr int lanes = kInterleaved ? 8 : 4, vectors = kInterleaved ? 2 * kPairWords : kPairWords;
    constexpr int senders = kInterleaved ? lanes / vectors : lanes;  // lanes that share the peers out
    constexpr int own = kInterleaved ? 1 : vectors;                  // vectors that a lane sends
    const int lane = block.lane, member = kDirect ? lane / 8 : lane % lanes;
    const int sender = kInterleaved ? member / vectors : member;
    auto from = [&](int other) { return kDirect ? other * 8 + lane % 8 : lane - lane % lanes + other; };
    const int base = in_shared(tile, index), k = (gate * kPadded + w.unit / 8 * 8) * kBytes;
    u32 sent[own][4];
    int place[own];
    if constexpr (kInterleaved) {
      const int v = member % vectors;
      place[0] = base + offset(w.row % 8 + w.row / 16 * 16, k + v * 8);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int pair = kPairWords == 2 ? v : 2 * v + e / 2;
        sent[0][e] = __shfl_sync(~0u, word[kPairWords == 2 ? e / 2 : 0], from(pair + e % 2 * 4));
      }
    } else {
#pragma unroll
      for (int v = 0; v < vectors; ++v) {
        place[v] = base + offset(w.row, k + v * 16);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int at = v * 4 + e;
          sent[v][e] = __shfl_sync(~0u, word[at % kPairWords], from(at / kPairWords));
        }
      }
    }
    const u32 counter = barrier(block, tile, index);
    if (!w.on) return;
#pragma unroll
    for (int n = 0; n < (kBlocks + senders - 1) / senders; ++n) {
      if (kBlocks % senders != 0 && n * senders + sender >= kBlocks) break;
      const u32 peer = (n * senders + sender + block.rank) % kBlocks;
#pragma unroll
      for (int v = 0; v < own; ++v)
        send(on_peer(shared_address(block.shared) + place[v], peer), on_peer(counter, peer),
             make_uint4(sent[v][0], sent[v][1], sent[v][2], sent[v][3]));
    }
#endif
  }

  // Lets the barrier expect the operand after the one just used.
  static ZS_DEVICE void arm(const Block& block, int tile, i64 index) {
#if __CUDA_ARCH__ >= 900
    if constexpr (kMode == kCluster)
      if (block.thread == 0) barrier_expect(barrier(block, tile, index), Here::tile_bytes);
#endif
  }
  // Waits for an operand; in the grid mode, gather() waits instead.
  static ZS_DEVICE void wait(const Block& block, int tile, i64 index) {
    if constexpr (kMode == kBlock) __syncthreads();
#if __CUDA_ARCH__ >= 900
    if constexpr (kMode == kCluster) {
      Patience patience;
      while (!barrier_passed(barrier(block, tile, index), static_cast<u32>(index >> 1) & 1)) patience.look();
    }
#endif
  }
};

template <int P = 0>
ZS_DEVICE void arm_all(const Block& block, int tile, int place) {
  Exchange<P>::arm(block, tile, place);
  if constexpr (P < kLastPhase) arm_all<P + 1>(block, tile, place);
}
// Called before the first publish, and after the last wait.
ZS_DEVICE void open_exchange(const Block& block) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kMode == kCluster) {
    if (block.thread == 0) {
      for (int k = 0; k < kPhases * kTiles * 2; ++k) barrier_init(shared_address(block.shared) + k * 8);
      barrier_init_done();
    }
    __syncthreads();
    for (int k = 0; k < 2; ++k)
      for (int tile = 0; tile < kTiles; ++tile) arm_all(block, tile, k);
    cluster_barrier();
  }
#endif
}
ZS_DEVICE void close_exchange() {
#if __CUDA_ARCH__ >= 900
  if constexpr (kMode == kCluster) cluster_barrier();  // no block may leave while a peer still sends to it
#endif
}

// An operand as a warp reads it: the warp's own k-blocks, in which each thread has 16 bytes of a row.
template <int P>
struct Operand {
  using Here = Phase<P>;
  using Chunk = uint4[Here::chunk][kRowEights];

  const char* rows;
  const int k_blocks, column;  // k-blocks: of this warp

  ZS_DEVICE Operand(const Block& block, int tile, i64 index)
      : k_blocks(Here::k_blocks % kWarpsK == 0
                     ? Here::warp_blocks
                     : min(Here::warp_blocks, Here::k_blocks - block.warp_k * Here::warp_blocks)),
        column(block.column) {
    if constexpr (kMode == kGrid)
      rows = Exchange<P>::in_l2(block, tile, index);
    else
      rows = block.shared + Exchange<P>::in_shared(tile, index);
    rows += block.warp_k * Here::warp_blocks * kRows * 64 + block.quarter * 16;
  }
  ZS_DEVICE uint4 load(int k, int row) const {
    const char* from = rows + (k * kRows + row) * 64;
    if constexpr (kMode == kGrid)
      return load_relaxed(from);
    else
      return *reinterpret_cast<const uint4*>(from);
  }
  // Loads a chunk of k-blocks. `requested`: the loads were issued earlier and may or may not have arrived.
  ZS_DEVICE void gather(int first, Chunk& x, bool requested) const {
    if (!requested) {
      const bool has_row = kRows >= 8 || column < kRows;
#pragma unroll
      for (int k = 0; k < Here::chunk; ++k)
#pragma unroll
        for (int h = 0; h < kRowEights; ++h)
          x[k][h] = first + k < k_blocks && has_row ? load(first + k, column + h * 8) : make_uint4(0, 0, 0, 0);
    }
    if constexpr (kMode == kGrid) {
      // Reload everything that is missing at once: each round takes as long as the way to L2.
      Patience patience;
      for (bool all = false; !all; patience.look()) {
        all = true;
#pragma unroll
        for (int k = 0; k < Here::chunk; ++k)
#pragma unroll
          for (int h = 0; h < kRowEights; ++h)
            if (missing(x[k][h])) {
              all = false;
              x[k][h] = load(first + k, column + h * 8);
            }
      }
    }
  }
};

// Several tiles in turn, exchanged through L2: the next tile's operand was published a while ago, so its first chunk is
// requested before its turn. Pays where turns are long, as those that save four gates are (8% at H = 1024); in a short
// one the data would not be there yet.
constexpr bool kAhead = kMode == kGrid && kTiles > 1 && kLooksAhead && kIsHalf && kRows == 16 && Phase<0>::held > 0 &&
                        kHoldsAll&& Phase<0>::chunk <= 4 && Phase<0>::k_blocks % kWarpsK == 0;
using Ahead = uint4[kAhead ? Phase<0>::chunk : 1][kRowEights];

ZS_DEVICE void look_ahead(const Block& block, int tile, i64 index, Ahead& ahead) {
  if constexpr (kAhead) {
    if (index >= block.a.T) return;
    const Operand<0> operand(block, tile, index);
#pragma unroll
    for (int k = 0; k < Phase<0>::chunk; ++k)
#pragma unroll
      for (int h = 0; h < kRowEights; ++h) ahead[k][h] = operand.load(k, block.column + h * 8);
  }
}
