// The scan as one launch per phase of every step: the cell's part, after a product by the library or by streamed.cu.
//
// A block has kRows rows and kUnits units of one direction. A launch reads the product of its phase, applies the cell's
// equations and writes the operand of the next product. What a cell keeps, and its sums over time, stay in device
// memory for later launches.

// What earlier launches have kept for an item; loaded before its turn, so that a thread's loads are issued together.
using Kept = float2[kStates > 0 ? kStates : 1];
template <class HandOn>
struct StepTurn : Turn<HandOn> {
  const Kept& kept;
  ZS_DEVICE float2 recall(int k) const { return kept[k]; }
};

// The offset of a unit's values of a row in the n-th of several matrices [N][gates][H].
ZS_DEVICE i64 matrix_at(const Block& block, const Item& w, int gates, int n) {
  return (n * block.a.N + block.tile_group * kRows + w.row) * gates * kHidden + w.unit;
}

// Writes an item's part of the operand of phase P, its parts in the order of the weight's rows.
template <int P>
ZS_DEVICE void write_operand(const Block& block, const Item& w, const float2 (&operand)[kWidest]) {
  using Next = Phase<P>;
  // Our own products read whole pieces of 16 bytes.
  constexpr i64 piece = kStreams ? 16 / kBytes : 1, row = (Next::ins * kHidden + piece - 1) / piece * piece;
  const i64 n = block.tile_group * kRows + w.row;
  Stored* const to = block.a.operand + (w.chain * block.a.N + n) * row + w.unit;
#pragma unroll
  for (int g = 0; g < Next::ins; ++g) {
    float2 x = operand[g];
    if constexpr (kType == kTf32) x = {__uint_as_float(operand_word(x.x)), __uint_as_float(operand_word(x.y))};
    store_pair(to + in_place<P>(g) * kHidden, x, w.count);
  }
}

// Adds the sums of the block's rows to those of earlier launches; the first launch stores its own.
ZS_DEVICE void add_sums(const Block& block, const Sums& sums, bool is_first) {
  constexpr int warps = kThreads / 32;
  __shared__ float2 rows[Sums::count > 0 ? Sums::count : 1][warps][32];
#pragma unroll
  for (int q = 0; q < Sums::count; ++q) rows[q][block.warp][block.lane] = sums.at(q);
  if constexpr (Sums::count > 0) __syncthreads();
#pragma unroll 1
  for (int q = block.warp; q < Sums::count; q += warps) {
    float2 x = rows[q][0][block.lane];
#pragma unroll
    for (int r = 1; r < warps; ++r) x = x + rows[q][r][block.lane];
    const int unit = block.rank * kUnits + block.lane * 2;
    Summed* const to = Sums::place(block.a, q, block.direction()) + block.tile_group * block.a.sum_stride +
                       block.first_column() + unit;
    if (unit < kHidden) put(to, is_first ? x.x : *to + x.x);
    if (unit + 1 < kHidden) put(to + 1, is_first ? x.y : to[1] + x.y);
  }
}

// One phase of step a.index.
template <int P>
ZS_DEVICE void step(const Arguments& a) {
  using Here = Phase<P>;
  constexpr int parts = kParts[P];  // products that are added up here
  const Block block(a, nullptr);
  Constants constants;
  Sums sums = {};
  Pass::Loaded loaded[kItemsPerThread];
  Pair products[kItemsPerThread][parts][Here::outs];
  Kept kept[kItemsPerThread];

  // Nothing launched since the previous cell's launch writes these inputs, so they may be read before the wait.
#pragma unroll
  for (int p = 0; p < kItemsPerThread; ++p) Pass::template fetch<P>(a, block.item(p, 0), a.index, loaded[p]);
  constants.load(a, block.item(0, 0));  // a thread's items all have the same units
  wait_for_earlier_launches();
  if constexpr (kStreams) let_the_next_begin();
#pragma unroll
  for (int p = 0; p < kItemsPerThread; ++p) {
    const Item item = block.item(p, 0);
#pragma unroll
    for (int k = 0; k < parts; ++k) {
      const Stored* const from = a.product + matrix_at(block, item, Here::outs, item.chain * parts + k);
#pragma unroll
      for (int g = 0; g < Here::outs; ++g) products[p][k][g] = take(from + out_place<P>(g) * kHidden, item.count);
    }
#pragma unroll
    for (int k = 0; k < kStates; ++k) kept[p][k] = block.state()[k * kStateStride + item.state];
  }
#pragma unroll
  for (int p = 0; p < kItemsPerThread; ++p) {
    const Item item = block.item(p, 0);
    float2 total[kWidest] = {};
#pragma unroll
    for (int k = 0; k < parts; ++k)
#pragma unroll
      for (int g = 0; g < Here::outs; ++g) total[g] = total[g] + products[p][k][g].value();
    auto hand_on = [&](const float2(&operand)[kWidest]) {
      constexpr int next = P == kLastPhase ? 0 : P + 1;
      if (next || a.index + 1 < a.T) write_operand<next>(block, item, operand);
    };
    const StepTurn<decltype(hand_on)> turn{{a, item, constants, block.state(), sums, hand_on}, kept[p]};
    Pass::template consume<P>(turn, a.index, Pass::Inputs(loaded[p]), total);
  }
  add_sums(block, sums, false);
}

// Before the first step: the operand of its product.
extern "C" __global__ void __launch_bounds__(kThreads, kResident) begin(const __grid_constant__ Arguments a) {
  const Block block(a, nullptr);
  Constants constants;
  Sums sums = {};
  constants.load(a, block.item(0, 0));
#pragma unroll
  for (int p = 0; p < kItemsPerThread; ++p) {
    const Item item = block.item(p, 0);
    auto hand_on = [&](const float2(&operand)[kWidest]) { write_operand<0>(block, item, operand); };
    Pass::begin(Turn<decltype(hand_on)>{a, item, constants, block.state(), sums, hand_on});
  }
  add_sums(block, sums, true);
}
// The first of two phases.
extern "C" __global__ void __launch_bounds__(kThreads, kResident) first_phase(const __grid_constant__ Arguments a) {
  if constexpr (kPhases == 2) step<0>(a);
}
// The only phase, or the second.
extern "C" __global__ void __launch_bounds__(kThreads, kResident) last_phase(const __grid_constant__ Arguments a) {
  step<kLastPhase>(a);
}
