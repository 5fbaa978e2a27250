// What a thread works on: its place in the block and the group, and its items.
//
// An item is a pair of neighbouring units of one row, or one unit. A thread has up to kItemsPerThread of them in a
// tile.
#pragma once

struct Item {
  int chain, direction, row;
  int unit, column;               // of the head, of the layer
  int count;                      // how many units of the pair lie inside the head
  int state;                      // its place in the state that a block keeps
  bool on;                        // whether the thread has this item at all
  i64 gates, pair, mask, resets;  // places in one step of [N,D,G,H], of [N,D,H], of the mask and of [N,D]
};

// How many units of an item lie inside the head.
ZS_DEVICE int units_inside(int unit) { return min(max(kHidden - unit, 0), kItemUnits); }

struct Block {
  const Arguments& a;
  char* const shared;
  const int thread, warp, lane;
  const int column, quarter;  // of the lane, in fragments of the matrix instruction
  const int warp_k, warp_n;
  const int group, groups, rank;  // groups: of this launch; rank: of the block in its group
  const int chain;                // kRow: of the thread
  const i64 tile_group;

  ZS_DEVICE Block(const Arguments& a, char* shared)
      : a(a),
        shared(shared),
        thread(threadIdx.x),
        warp(thread / 32),
        lane(thread % 32),
        column(lane / 4),
        quarter(lane % 4),
        warp_k(warp % kWarpsK),
        warp_n(warp / kWarpsK),
        group(blockIdx.x / kBlocks),
        groups(gridDim.x / kBlocks),
        rank(blockIdx.x % kBlocks),
        chain(min(group % kChainGroups * kPack + packed(thread), kChains - 1)),
        tile_group(a.first_group + group / kChainGroups) {}

  // Which of the heads of a block a thread works on.
  static ZS_DEVICE int packed(int thread) { return kPack == 1 ? 0 : thread / kChunk / kHidden; }
  ZS_DEVICE int direction() const { return chain / kHeads; }
  ZS_DEVICE int first_column() const { return chain % kHeads * kHidden; }

  ZS_DEVICE float2* state() const {
    if constexpr (kMode == kSteps) return a.kept + static_cast<i64>(blockIdx.x) * kStates * kStateStride;
    return reinterpret_cast<float2*>(shared + kAtState);
  }
  ZS_DEVICE float* sums() const { return reinterpret_cast<float*>(shared + kAtSums); }

  // Whether every thread of this warp lacks a p-th item.
  ZS_DEVICE bool is_idle(int p) const {
    return !kDirect && kItems % kThreads != 0 && p * kThreads + warp * 32 >= kItems;
  }
  // The thread's p-th item of a tile.
  ZS_DEVICE Item item(int p, int tile) const {
    int row, unit;
    bool on;
    if constexpr (kMode == kRow) {  // the first of kChunk lanes
      const int head = packed(thread);
      row = 0;
      unit = thread / kChunk - head * kHidden;
      on = thread % kChunk == 0;
      if constexpr (kPack > 1) on = on && head < kPack && group % kChainGroups * kPack + head < kChains;
    } else if constexpr (kDirect) {  // where the matrix instruction leaves its results, and a neighbour's
      row = quarter * 2 + column % 2;
      on = row < kRows;
      if (!on) row = 0;
      unit = (warp_n * kUnitTiles + p) * 8 + column / 2 * 2;
    } else {
      const int item = p * kThreads + thread;
      on = kItems % kThreads == 0 || item < kItems;
      if constexpr (kInterleaved) {  // eight lanes have the same eight units of rows r and r + 8
        const int rows = item / 8 / (kUnits / 8);
        row = rows / 8 * 16 + rows % 8 + item / 4 % 2 * 8;
        unit = item / 8 % (kUnits / 8) * 8 + item % 4 * 2;
      } else {
        row = item / (kUnits / 2);
        unit = item % (kUnits / 2) * 2;
      }
      if (!on) row = unit = 0;
    }
    return item_at(row, unit, tile, on);
  }
  // A row of a tile and a unit of the block.
  ZS_DEVICE Item item_at(int row, int unit, int tile, bool on) const {
    Item w;
    w.chain = chain;
    w.direction = direction();
    w.row = row;
    w.on = on;
    w.unit = rank * kUnits + unit;
    w.column = first_column() + w.unit;
    const i64 n = (tile_group * kTiles + tile) * kRows + w.row;
    w.count = w.on && n < a.N ? units_inside(w.unit) : 0;
    w.state = kMode == kRow ? 0 : (tile * kRows + w.row) * (kUnits / 2) + unit / 2;
    const i64 place = n * kDirections + w.direction;
    w.pair = place * kLayer + w.column;
    w.gates = place * kGates * kLayer + w.column;
    w.mask = kHasMask ? n * a.mask_n + (static_cast<i64>(w.direction) * kLayer + w.column) * a.mask_h : 0;
    w.resets = kHasResets ? place : 0;
    return w;
  }
};

// The index of processing step s in tensors stored in input order, or in output order.
ZS_DEVICE i64 input_time(const Arguments& a, const Item& w, i64 s) {
  return (kDirections == 2 ? w.direction == 1 : kReverse) ? a.T - 1 - s : s;
}
ZS_DEVICE i64 output_time(const Arguments& a, const Item& w, i64 s) {
  return kDirections == 2 && w.direction == 1 ? a.T - 1 - s : s;
}
// The step's offset is the same for all threads, and the item's for all steps: one addition remains.
ZS_DEVICE i64 pair_at(const Arguments& a, const Item& w, i64 t) { return t * a.step + w.pair; }
ZS_DEVICE i64 gates_at(const Arguments& a, const Item& w, i64 t) { return t * a.step * kGates + w.gates; }
ZS_DEVICE const Stored* mask_at(const Arguments& a, const Item& w, i64 s) {
  return a.mask + (input_time(a, w, s) * a.mask_t + w.mask);
}
ZS_DEVICE Pair take_mask(const Arguments& a, const Item& w, i64 s) {
  if constexpr (kMaskPairs)
    return take(mask_at(a, w, s), w.count);
  else
    return take_apart(mask_at(a, w, s), a.mask_h, w.count);
}
// Whether step s begins a new sequence.
ZS_DEVICE Same take_reset(const Arguments& a, const Item& w, i64 s) {
  return take_same(a.resets + (input_time(a, w, s) * a.N * kDirections + w.resets), w.count);
}
// The value of the step before s of [T,N,D,H]; before the first step, the initial value.
ZS_DEVICE Pair take_earlier(const Arguments& a, const Item& w, const Stored* steps, const Stored* first, bool has_first,
                            i64 s) {
  const Stored* from = s > 0 ? steps + pair_at(a, w, output_time(a, w, s - 1)) : first + w.pair;
  return take(from, s > 0 || has_first ? w.count : 0);
}

// All threads that compute: the scan for many rows has a warp group that only copies.
ZS_DEVICE void block_barrier() {
  if constexpr (kMode == kWide)
    asm volatile("bar.sync 1,%0;" ::"n"(kThreads) : "memory");
  else if constexpr (kThreads == 32)
    __syncwarp();
  else
    __syncthreads();
}
