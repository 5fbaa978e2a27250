// The scan, forward and backward, for every cell: one launch for the whole sequence.
//
// Blocks work in groups of kBlocks. A group has one direction and kTiles tiles of up to 32 rows; a block has kUnits
// units of the layer and the slice of the weight that these need. Each phase of a step gathers the operand that all
// blocks of the group have made, multiplies it, adds up over the warps, applies the cell's equations and hands on the
// result; or it reduces rows instead. Tiles are independent, so one tile's exchange overlaps another's computation.

// What a thread carries from step to step.
struct Carried {
  Constants constants[kItemsPerThread];
  Sums sums[kItemsPerThread];
  Ahead ahead;
  int turn = 0, reduced = 0;  // which of the two buffers of partial sums, and of results of reductions, is next
  bool is_far;                // inputs come from device memory; a small one written just before is still in L2
};
constexpr i64 kFar = 8 << 20;  // bytes

template <int P>
ZS_DEVICE void publish(const Block& block, const Item& item, int tile, i64 index, const float2 (&operand)[kWidest]) {
  if constexpr (Phase<P>::reduces)
    Reduction<P>::publish(block, item, tile, index, operand);
  else
    Exchange<P>::publish(block, item, tile, index, operand);
}

// The operand of the first phase.
ZS_DEVICE void begin(const Block& block, Carried& carried, int tile) {
#pragma unroll
  for (int p = 0; p < kItemsPerThread; ++p) {
    if (block.is_idle(p)) continue;
    const Item item = block.item(p, tile);
    auto hand_on = [&](const float2(&operand)[kWidest]) { publish<0>(block, item, tile, 0, operand); };
    Pass::begin(turn_of(block, item, carried, p, hand_on));
  }
}

// One phase of one step of one tile.
template <int P>
ZS_DEVICE void work(const Block& block, const Weight<P>& weight, Carried& carried, int tile, i64 index) {
  Pass::Loaded loaded[kItemsPerThread];
#pragma unroll
  for (int p = 0; p < kItemsPerThread; ++p) {
    if (block.is_idle(p)) continue;
    const Item item = block.item(p, tile);
    Pass::template fetch<P>(block.a, item, index, loaded[p]);
    if (carried.is_far) Pass::template fetch_ahead<P>(block.a, item, index);
  }
  float* const partial = block.sums() + carried.turn * kWarpsK * kSumSize;
  Exchange<P>::wait(block, tile, index);
  Product<P> product;
  float* const results = reinterpret_cast<float*>(block.shared + kAtReduced) + carried.reduced * kRows * kMostReduced;
  if constexpr (Phase<P>::reduces) {
    carried.reduced ^= 1;
    Reduction<P>::reduce(block, tile, index, results);
  } else {
    carried.turn ^= 1;
    product.multiply(block, weight, Operand<P>(block, tile, index), carried.ahead, partial);
  }
  if constexpr (Phase<P>::reduces || !kDirect) __syncthreads();
  Exchange<P>::arm(block, tile, index);
#pragma unroll
  for (int p = 0; p < kItemsPerThread; ++p) {
    if (block.is_idle(p)) continue;
    const Item item = block.item(p, tile);
    float2 total[kWidest] = {};
    if constexpr (Phase<P>::reduces)
      Reduction<P>::total(item, results, total);
    else
      product.total(block, item, p, partial, total);
    auto hand_on = [&](const float2(&operand)[kWidest]) {
      constexpr int next = P == kLastPhase ? 0 : P + 1;
      const i64 next_index = next ? index : index + 1;
      if (next_index < block.a.T) publish<next>(block, item, tile, next_index, operand);
    };
    const auto turn = turn_of(block, item, carried, p, hand_on);
    Pass::template consume<P>(turn, index, Pass::Inputs(loaded[p]), total);
  }
  look_ahead(block, tile + 1 < kTiles ? tile + 1 : 0, tile + 1 < kTiles ? index : index + 1, carried.ahead);
}

// The weights of a phase and of those after it.
template <int P>
struct Weights {
  Weight<P> own;
  Weights<P + 1> others;
  ZS_DEVICE void load(const Block& block) {
    own.load(block);
    others.load(block);
  }
};
template <>
struct Weights<kPhases> {
  ZS_DEVICE void load(const Block&) {}
};

// A phase of one step of all tiles, and those after it.
template <int P>
ZS_DEVICE void work_on(const Block& block, const Weights<P>& weights, Carried& carried, i64 index) {
#pragma unroll 1
  for (int tile = 0; tile < kTiles; ++tile) work<P>(block, weights.own, carried, tile, index);
  if constexpr (P < kLastPhase) work_on<P + 1>(block, weights.others, carried, index);
}

extern "C" __global__ void __launch_bounds__(kThreads, kResident) scan(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(128) char shared[];
  const Block block(a, shared);
  Weights<0> weights;
  weights.load(block);
  open_exchange(block);

  Carried carried;
  carried.is_far = a.T * a.step * kGates * kBytes > kFar;
#pragma unroll
  for (int p = 0; p < kItemsPerThread; ++p) {
    carried.sums[p] = Sums{};
    carried.constants[p].load(a, block.item(p, 0));
  }
  for (int tile = 0; tile < kTiles; ++tile) begin(block, carried, tile);
  look_ahead(block, 0, 0, carried.ahead);
#pragma unroll 1
  for (i64 index = 0; index < a.T; ++index) work_on<0>(block, weights, carried, index);
  store_sums(block, carried.sums);
  close_exchange();
}
