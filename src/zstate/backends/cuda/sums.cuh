// Sums over time and over the rows of a tile group: the gradients of biases and of a cell's own parameters. Fixed
// order, no atomics. Sums, a type of the cell's, numbers those of one item.
#pragma once

// In full float32 a sum carries its rounding error; otherwise long sequences would lose more than a tree of sums.
struct Sum {
  float2 sum, rest;
  ZS_DEVICE void add(float2 x) {
    if constexpr (kType == kFloat32) {
      x = {x.x - rest.x, x.y - rest.y};
      const float2 next = {__fadd_rn(sum.x, x.x), __fadd_rn(sum.y, x.y)};
      rest = {__fsub_rn(__fsub_rn(next.x, sum.x), x.x), __fsub_rn(__fsub_rn(next.y, sum.y), x.y)};
      sum = next;
    } else {
      sum = {sum.x + x.x, sum.y + x.y};
    }
  }
};

// Adds up the rows of the group and stores the sums of the block's units.
template <class Sums>
ZS_DEVICE void store_sums(const Block& block, const Sums (&sums)[kItemsPerThread]) {
#pragma unroll
  for (int q = 0; q < Sums::count; ++q) {
    Summed* const to =
        Sums::place(block.a, q, block.direction()) + block.tile_group * block.a.sum_stride + block.first_column();
    auto put_pair = [&](int unit, float2 x) {
      unit += block.rank * kUnits;
      if (unit < kHidden) put(to + unit, x.x);
      if (unit + 1 < kHidden) put(to + unit + 1, x.y);
    };
    if constexpr (kMode == kRow) {
      if (const Item w = block.item(0, 0); w.count) put(to + w.unit, sums[0].at(q).x);
    } else if constexpr (kDirect) {
#pragma unroll
      for (int u = 0; u < kUnitTiles; ++u) {
        float2 x = sums[u].at(q);
#pragma unroll
        for (int away = 1; away < 8; away *= 2)  // lanes with other rows of the same units
          x = x + make_float2(__shfl_xor_sync(~0u, x.x, away), __shfl_xor_sync(~0u, x.y, away));
        if (block.lane % 8 == 0) put_pair((block.warp_n * kUnitTiles + u) * 8 + block.column, x);
      }
    } else {
      float2* const rows = reinterpret_cast<float2*>(block.sums());
      block_barrier();
#pragma unroll
      for (int p = 0; p < kItemsPerThread; ++p)
        if (const Item w = block.item(p, 0); w.on) rows[w.state] = sums[p].at(q);
      block_barrier();
#pragma unroll 1
      for (int pair = block.thread; pair < kUnits / 2; pair += kThreads) {
        Sum x = {};
#pragma unroll 1
        for (int r = 0; r < kRows; ++r) x.add(rows[r * (kUnits / 2) + pair]);
        put_pair(pair * 2, x.sum);
      }
    }
  }
}
