// The scan for many rows, by warp-group matrix instructions (compute capability 9.0): one launch for the whole
// sequence.
//
// A group of kBlocks blocks has one direction and kTiles tiles of kRows rows. A block holds the weight of its units on
// the chip as the instruction's first operand: in registers, and the rest in shared memory. A tile's operand passes
// through L2, where it lies as the instruction takes it; a counter per tile says how many blocks have handed on their
// part. A separate warp group copies operands into a ring of stages in shared memory and raises the counters, so the
// computing warps never wait for their stores to become visible.
//
// Backward, the blocks of a cluster multiply one gate of the operand each, for the units of all, and send every peer
// its sums, so a block needs no more of the operand than it does forward.

struct Carried {
  Constants constants[kItemsPerThread];
  Sums sums[kItemsPerThread];
  u32 stages = 0;  // of the ring, counted from the beginning
};

// ---- places

struct Place {
  const Block& block;
  ZS_DEVICE u32 shared(int byte) const { return shared_address(block.shared) + byte; }
  ZS_DEVICE u32 full(u32 slot) const { return shared(slot * 8); }
  ZS_DEVICE u32 empty(u32 slot) const { return shared((kSlots + slot) * 8); }
  ZS_DEVICE u32 handed_on(int tile) const { return shared((2 * kSlots + tile) * 8); }
  ZS_DEVICE u32 received(int tile) const { return shared((2 * kSlots + kTiles + tile) * 8); }
  ZS_DEVICE u32 stage(u32 slot) const { return shared(kAtRing + slot * kStageBytes); }
  ZS_DEVICE int peer() const { return block.rank % kPeers; }
  // For a tile: how many blocks have handed on their part, minus one, over all steps.
  ZS_DEVICE u64* counter(int tile) const {
    return reinterpret_cast<u64*>(block.a.exchange + (block.group * kTiles + tile) * 128);
  }
  // Steps alternate between two buffers: a block that hands on its next operand has received this step's from all
  // blocks, so nobody still reads the previous one.
  ZS_DEVICE char* operand(int tile, i64 index) const {
    constexpr i64 bytes = static_cast<i64>(kRows) * Phase<0>::ins * kPadded * kBytes;
    return block.a.exchange + block.groups * kTiles * 128 +
           (((index & 1) * block.groups + block.group) * kTiles + tile) * bytes;
  }
  // Where the word lies that begins at the k-th byte of a row: 64 bytes of K of all rows, their 16-byte pieces swapped
  // as the instruction expects.
  static ZS_DEVICE int offset(int row, int k) {
    return (k / 64 * kRows + row) * 64 + ((k % 64 / 16) ^ (row / 2 % 4)) * 16 + k % 16;
  }
};

ZS_DEVICE void wait_for(u32 barrier, u32 parity) {
  Patience patience;
  while (!barrier_passed(barrier, parity)) patience.look();
}

// ---- the exchange

ZS_DEVICE void publish(const Place& at, const Item& w, int tile, i64 index, const float2 (&operand)[kWidest]) {
#pragma unroll
  for (int g = 0; g < Phase<0>::ins; ++g) {
    u32 word[kPairWords];
    operand_pair({w.count > 0 ? operand[g].x : 0.0f, w.count > 1 ? operand[g].y : 0.0f}, word);
    if (w.on) store_relaxed(at.operand(tile, index) + Place::offset(w.row, (g * kPadded + w.unit) * kBytes), word);
  }
}
// This warp has handed on its part of a tile's operand.
ZS_DEVICE void hand_on_done(const Place& at, int tile) {
  __syncwarp();
  if (at.block.lane == 0) barrier_arrive(at.handed_on(tile));
}

// The warp that tells the group when this block's part of an operand is there. While it waits, it prefetches into L2
// what later steps read.
ZS_DEVICE void tell_group(const Place& at) {
  const Block& block = at.block;
  constexpr int sectors = kUnits * kBytes >= 32 ? kUnits * kBytes / 32 : 1;  // of a row
#pragma unroll 1
  for (i64 index = 0; index < block.a.T; ++index)
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile) {
      wait_for(at.handed_on(tile), index & 1);
      if (block.lane == 0) count_up(at.counter(tile));
#pragma unroll 1
      for (int i = block.lane; i < kRows * sectors; i += 32)
        Pass::template fetch_ahead<0>(block.a, block.item_at(i / sectors, i % sectors * (32 / kBytes), tile, true),
                                      index);
    }
}
// The warps that copy: every operand as soon as all blocks have handed on. Each slot of the ring has one copier: with
// several, one could refill a slot a round too early.
ZS_DEVICE void fetch_operands(const Place& at, u32 copier) {
  const i64 gate = kSplits ? static_cast<i64>(at.peer()) * kTileStages * kStageBytes : 0;
  u32 stages = 0;
#pragma unroll 1
  for (i64 index = 0; index < at.block.a.T; ++index)
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile, stages += kTileStages) {
      Patience patience;
      while (counted(at.counter(tile)) + 1 < static_cast<u64>(kBlocks) * (index + 1)) patience.look();
      see_counted();
      const char* const from = at.operand(tile, index) + gate;
#pragma unroll 1
      for (int s = 0; s < kTileStages; ++s) {
        const u32 slot = (stages + s) % kSlots;
        if (slot % kCopiers != copier) continue;
        wait_for(at.empty(slot), ((stages + s) / kSlots & 1) ^ 1);
        barrier_expect(at.full(slot), kStageBytes);
        copy_bulk(at.stage(slot), from + s * kStageBytes, kStageBytes, at.full(slot));
      }
    }
}

// ---- the weight

// A column of the weight and K: forward the gates of the block's units, backward the units of the block and its peers.
struct Weight {
  u32 held[kHeldStages > 0 ? kHeldStages : 1][2 * kPieces][4];

  // The k-th value of a column. Outside the layer it is 0; the compiler may load all the same, so the address is valid.
  static ZS_DEVICE u32 bits(const Block& block, int column, int k, bool is_word) {
    const int first = block.rank / kPeers * kPeers * kUnits;
    const int gate = kBackward ? block.rank % kPeers : column / kUnits;
    const int unit = first + (kBackward ? column : column % kUnits);
    const bool on = (kBackward ? column < kPeers * kUnits : gate < Phase<0>::outs) && unit < kHidden && k < kHidden;
    const i64 row = kBackward ? k : unit, at = kBackward ? unit : k;
    const int slot = kBackward ? slot_of<0>(0, gate) : slot_of<0>(gate, 0);
    const i64 place = ((block.chain * kGates + slot) * static_cast<i64>(kHidden) + row) * kHidden + at;
    const Stored* const from = block.a.weight + (on ? place : 0);
    const u32 loaded =
        is_word ? __ldg(reinterpret_cast<const u32*>(from)) : __ldg(reinterpret_cast<const unsigned short*>(from));
    return on ? loaded : 0;
  }
  // Four bytes of a column from the k-th byte on.
  static ZS_DEVICE u32 word(const Block& block, int column, int k) {
    if constexpr (kBytes == 4) return operand_word(__uint_as_float(bits(block, column, k / 4, true)));
    if constexpr (!kBackward && kHidden % 2 == 0) return bits(block, column, k / 2, true);
    return bits(block, column, k / 2, false) | bits(block, column, k / 2 + 1, false) << 16;
  }
  // Writes a warp group's columns for a stage into shared memory: 64 bytes of K of all columns, then the next 64...
  static ZS_DEVICE void put(const Block& block, char* to, int stage) {
    const int group = block.warp / 4, first = group % kGroupsM * 64;
#pragma unroll 2
    for (int i = block.thread % 128; i < kStageWeight / 16; i += 128) {
      const int column = i % 64, quarter = i / 64 % 4, piece = i / 256;
      const int k = ((stage * kGroupsK + group / kGroupsM) * kPieces + piece) * 64 + quarter * 16;
      u32 v[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) v[e] = word(block, first + column, k + e * 4);
      *reinterpret_cast<uint4*>(to + piece * 4096 + swapped(column, quarter * 16)) = make_uint4(v[0], v[1], v[2], v[3]);
    }
  }
  static ZS_DEVICE int swapped(int column, int k) { return column * 64 + (k / 16 ^ column / 2 % 4) * 16 + k % 16; }

  ZS_DEVICE void load(const Block& block) {
    const int group = block.warp / 4, column = block.warp % 4 * 16 + block.lane / 4;
    // Values for registers pass through shared memory that is not yet in use.
    char* const passing = block.shared + kAtSums + group * kStageWeight;
    static_assert(kAtSums + kGroupsM * kGroupsK * kStageWeight <= kShared || kHeldStages == 0, "room to pass through");
#pragma unroll
    for (int s = 0; s < kHeldStages; ++s) {
      put(block, passing, s);
      block_barrier();
#pragma unroll
      for (int j = 0; j < 2 * kPieces; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int k = j % 2 * 32 + e / 2 * 16 + block.lane % 4 * 4;
          held[s][j][e] = *reinterpret_cast<const u32*>(passing + j / 2 * 4096 + swapped(column + e % 2 * 8, k));
        }
      block_barrier();
    }
#pragma unroll 1
    for (int s = 0; s < kStoredStages; ++s)
      put(block, block.shared + kAtWeights + (group * kStoredStages + s) * kStageWeight, kHeldStages + s);
  }
};

// ---- the product

// A warp group's sums: of 64 columns of the weight and all rows of the tile.
struct Product {
  float sum[kRows / 2];

  template <bool Held>
  ZS_DEVICE void add(const Place& at, const Weight& weight, int s, u32 stages) {
    const int group = at.block.warp / 4;
    const u32 slot = stages % kSlots;
    wait_for(at.full(slot), stages / kSlots & 1);
    const u32 operand = at.stage(slot) + group / kGroupsM * kPieces * 64 * kRows;
    const u32 stored = at.shared(kAtWeights + (group * kStoredStages + s - kHeldStages) * kStageWeight);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < 2 * kPieces; ++j) {
      const u64 x = described(operand + j / 2 * 64 * kRows + j % 2 * 32);
      if constexpr (Held)
        wgmma(sum, weight.held[s][j], x, s > 0 || j > 0);
      else
        wgmma(sum, described(stored + j / 2 * 4096 + j % 2 * 32), x, s > 0 || j > 0);
    }
    wgmma_commit();
  }
  // A warp has finished with a stage.
  static ZS_DEVICE void release(const Place& at, u32 stages) {
    if (at.block.lane == 0) barrier_arrive(at.empty(stages % kSlots));
  }
  ZS_DEVICE void multiply(const Place& at, const Weight& weight, u32& stages) {
#pragma unroll
    for (int s = 0; s < kHeldStages; ++s, ++stages) {
      add<true>(at, weight, s, stages);
      if (s > 0) {
        wgmma_wait<1>();
        release(at, stages - 1);
      }
    }
#pragma unroll 1
    for (int s = kHeldStages; s < kTileStages; ++s, ++stages) {
      add<false>(at, weight, s, stages);
      wgmma_wait<1>();
      if (s > 0) release(at, stages - 1);
    }
    wgmma_wait<0>();
    release(at, stages - 1);
  }
  // Leaves the sums as [row][column].
  ZS_DEVICE void store(const Block& block) const {
    const int group = block.warp / 4, column = group % kGroupsM * 64 + block.warp % 4 * 16 + block.lane / 4;
    float* const to = block.sums() + group / kGroupsM * kSumSize + block.lane % 4 * 2 * kSumStride + column;
#pragma unroll
    for (int j = 0; j < kRows / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) to[(j * 8 + e % 2) * kSumStride + e / 2 * 8] = sum[j * 4 + e];
  }
};

// Sends every peer the sums of its units.
ZS_DEVICE void send_sums(const Place& at, int tile) {
  constexpr int pieces = kPeers * kUnits / 4;  // of a row
  const Block& block = at.block;
#pragma unroll 2
  for (int i = block.thread; i < kRows * pieces; i += kThreads) {
    const int row = i / pieces, column = i % pieces * 4;
    float4 sum = {};
#pragma unroll
    for (int k = 0; k < kGroupsK; ++k) {
      const float4 x = *reinterpret_cast<const float4*>(block.sums() + k * kSumSize + row * kSumStride + column);
      sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
    }
    const u32 owner = column / kUnits;
    const int place = tile * kReceivedSize + row * kReceivedStride + at.peer() * kUnits + column % kUnits;
    send(on_peer(at.shared(kAtReceived + place * 4), owner), on_peer(at.received(tile), owner),
         make_uint4(__float_as_uint(sum.x), __float_as_uint(sum.y), __float_as_uint(sum.z), __float_as_uint(sum.w)));
  }
}
ZS_DEVICE void expect_sums(const Place& at, int tile) {
  if (at.block.thread == 0) barrier_expect(at.received(tile), kRows * kPeers * kUnits * 4);
}
// The sums of an item: a pair for each gate that comes out.
ZS_DEVICE void total_of(const Block& block, const Item& w, int tile, float2 (&total)[kWidest]) {
  const int unit = w.unit - block.rank * kUnits;
  if constexpr (kSplits) {
    const float* from = reinterpret_cast<const float*>(block.shared + kAtReceived) + tile * kReceivedSize +
                        w.row * kReceivedStride + unit;
#pragma unroll
    for (int k = 0; k < kPeers; ++k) total[0] = total[0] + *reinterpret_cast<const float2*>(from + k * kUnits);
  } else {
    const float* from = block.sums() + w.row * kSumStride + unit;
#pragma unroll
    for (int g = 0; g < Phase<0>::outs; ++g)
#pragma unroll
      for (int k = 0; k < kGroupsK; ++k)
        total[g] = total[g] + *reinterpret_cast<const float2*>(from + k * kSumSize + g * kUnits);
  }
}

// ---- the scan

// The operand of the first product.
ZS_DEVICE void begin(const Place& at, Carried& carried, int tile) {
#pragma unroll
  for (int p = 0; p < kItemsPerThread; ++p) {
    if (at.block.is_idle(p)) continue;
    const Item item = at.block.item(p, tile);
    auto hand_on = [&](const float2(&operand)[kWidest]) { publish(at, item, tile, 0, operand); };
    Pass::begin(turn_of(at.block, item, carried, p, hand_on));
  }
  hand_on_done(at, tile);
}

using Loaded = Pass::Loaded[kItemsPerThread];

ZS_DEVICE void fetch(const Place& at, int tile, i64 index, Loaded& loaded) {
#pragma unroll
  for (int p = 0; p < kItemsPerThread; ++p)
    if (!at.block.is_idle(p)) Pass::template fetch<0>(at.block.a, at.block.item(p, tile), index, loaded[p]);
}
// The product of a tile: its sums are left in shared memory or, of several gates, are on their way there.
ZS_DEVICE void multiply(const Place& at, const Weight& weight, Carried& carried, int tile) {
  Product product;
  product.multiply(at, weight, carried.stages);
  block_barrier();  // the sums before these have been read
  product.store(at.block);
  block_barrier();
  if constexpr (kSplits) send_sums(at, tile);
}
// The cells of a tile.
ZS_DEVICE void finish(const Place& at, Carried& carried, int tile, i64 index, const Loaded& loaded) {
  const Block& block = at.block;
  if constexpr (kSplits) {
    wait_for(at.received(tile), index & 1);
    expect_sums(at, tile);
  }
#pragma unroll
  for (int p = 0; p < kItemsPerThread; ++p) {
    if (block.is_idle(p)) continue;
    const Item item = block.item(p, tile);
    float2 total[kWidest] = {};
    total_of(block, item, tile, total);
    auto hand_on = [&](const float2(&operand)[kWidest]) {
      if (index + 1 < block.a.T) publish(at, item, tile, index + 1, operand);
    };
    Pass::template consume<0>(turn_of(block, item, carried, p, hand_on), index, Pass::Inputs(loaded[p]), total);
  }
  if (index + 1 < block.a.T) hand_on_done(at, tile);
}

// All steps. A tile's cells follow the product of the next tile, which gives sums from peers time to arrive.
ZS_DEVICE void work(const Place& at, const Weight& weight, Carried& carried) {
  constexpr bool late = kSplits && kTiles > 2;  // with two tiles, the other's product would come too early
  const i64 T = at.block.a.T;
  if constexpr (late) {
    multiply(at, weight, carried, 0);
    int before = 0;
#pragma unroll 1
    for (i64 index = 0; index < T;) {
      Loaded loaded;
      fetch(at, before, index, loaded);
      const int tile = before + 1 < kTiles ? before + 1 : 0;
      if (tile > 0 || index + 1 < T) multiply(at, weight, carried, tile);
      finish(at, carried, before, index, loaded);
      before = tile;
      index += tile == 0;
    }
  } else {
#pragma unroll 1
    for (i64 index = 0; index < T; ++index)
#pragma unroll 1
      for (int tile = 0; tile < kTiles; ++tile) {
        Loaded loaded;
        fetch(at, tile, index, loaded);
        multiply(at, weight, carried, tile);
        finish(at, carried, tile, index, loaded);
      }
  }
}

ZS_DEVICE void open(const Place& at) {
  if (at.block.thread == 0) {
    for (int k = 0; k < kSlots; ++k) {
      barrier_init(at.full(k));
      barrier_init(at.empty(k), kThreads / 32);
    }
    for (int tile = 0; tile < kTiles; ++tile) {
      barrier_init(at.handed_on(tile), kThreads / 32);
      barrier_init(at.received(tile));
    }
    barrier_init_done();
    if constexpr (kSplits)
      for (int tile = 0; tile < kTiles; ++tile) expect_sums(at, tile);
  }
  order_proxies();  // the weight in shared memory, which matrix instructions read
  __syncthreads();
  if constexpr (kPeers > 1) cluster_barrier();
}

extern "C" __global__ void __launch_bounds__(kThreads + 128, 1) scan(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(1024) char shared[];
  const Block block(a, shared);
  const Place at{block};
  if (block.warp >= kThreads / 32) {
    give_registers<kCopierRegisters>();
    open(at);
    const int copier = block.warp - kThreads / 32;
    if (copier == kCopiers)
      tell_group(at);
    else if (block.lane == 0)
      fetch_operands(at, copier);
    __syncwarp();
  } else {
    take_registers<kWorkerRegisters>();
    Weight weight;
    weight.load(block);
    open(at);
    Carried carried;
#pragma unroll
    for (int p = 0; p < kItemsPerThread; ++p) {
      carried.sums[p] = Sums{};
      carried.constants[p].load(a, block.item(p, 0));
    }
    for (int tile = 0; tile < kTiles; ++tile) begin(at, carried, tile);
    work(at, weight, carried);
    store_sums(block, carried.sums);
  }
  if constexpr (kPeers > 1) cluster_barrier();  // no block may leave while a peer still sends to it
}
