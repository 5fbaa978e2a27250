// The scan with one row per block, for small layers: the weight lies in registers, and products are multiply-adds in
// full float32.
//
// kLanes neighbouring lanes have one unit. Each multiplies its part of K for all of the unit's gates; they add up
// their sums, and the first has the unit's item. So a step is one pass: it waits once for the block, and nothing but
// the operand goes through shared memory.

template <int P>
struct Weight {
  using Here = Phase<P>;
  float4 quads[Here::reduces ? 1 : Here::outs][Here::ins][kQuads];

  ZS_DEVICE void load(const Arguments& a, int chain, int unit, int lane) {
    if constexpr (Here::reduces) return;
#pragma unroll
    for (int out = 0; out < Here::outs; ++out)
#pragma unroll
      for (int in = 0; in < Here::ins; ++in)
#pragma unroll
        for (int q = 0; q < kQuads; ++q) {
          const int gate = slot_of<P>(out, in), k = (q * kLanes + lane) * 4;
          if (gate < 0) {
            quads[out][in][q] = {0.0f, 0.0f, 0.0f, 0.0f};
            continue;
          }
          const Stored* const from = a.weight + (static_cast<i64>(chain) * kGates + gate) * kHidden * kHidden;
          quads[out][in][q] = {one(from, unit, k), one(from, unit, k + 1), one(from, unit, k + 2),
                               one(from, unit, k + 3)};
        }
  }

 private:
  // Of a gate's weight [H,H]; 0 outside the layer, where its edge is read.
  static ZS_DEVICE float one(const Stored* from, int unit, int k) {
    const int row = min(kBackward ? k : unit, kHidden - 1), column = min(kBackward ? unit : k, kHidden - 1);
    const float value = widen(__ldg(from + row * kHidden + column));
    return unit < kHidden && k < kHidden ? value : 0.0f;
  }
};

// The place of a phase's operand: the gates of a head in turn, for each head of the block.
template <int P>
ZS_DEVICE float* operand_of(char* shared, int place, int head) {
  constexpr int first = kPack * Before<P>::ins * kPadded;
  return reinterpret_cast<float*>(shared) + place * kOperand + first + head * Phase<P>::ins * kPadded;
}
// Threads beyond the last head of a block read those of the first.
ZS_DEVICE int head_of(const Block& block) {
  const int head = Block::packed(block.thread);
  return kPack > 1 && head < kPack ? head : 0;
}

ZS_DEVICE float over_lanes(float x) {
#pragma unroll
  for (int away = 1; away < kLanes; away *= 2) x += __shfl_xor_sync(~0u, x, away);
  return x;
}

// The sums of a unit's gates, in all of its lanes.
template <int P>
ZS_DEVICE void multiply(const Weight<P>& weight, const float* operand, int lane, float2 (&total)[kWidest]) {
  using Here = Phase<P>;
  constexpr int chains = Here::outs == 1 ? 4 : 2;  // additions to one sum wait for each other
  float sum[Here::outs][chains] = {};
#pragma unroll
  for (int in = 0; in < Here::ins; ++in)
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const float4 x = reinterpret_cast<const float4*>(operand)[in * kPadded / 4 + q * kLanes + lane];
#pragma unroll
      for (int out = 0; out < Here::outs; ++out) {
        const float4 w = weight.quads[out][in][q];
        float (&s)[chains] = sum[out];
        s[0] = fmaf(x.x, w.x, s[0]);
        s[1] = fmaf(x.y, w.y, s[1]);
        s[2 % chains] = fmaf(x.z, w.z, s[2 % chains]);
        s[3 % chains] = fmaf(x.w, w.w, s[3 % chains]);
      }
    }
#pragma unroll
  for (int out = 0; out < Here::outs; ++out) {
    float s = sum[out][0] + sum[out][1];
    if constexpr (chains == 4) s += sum[out][2] + sum[out][3];
    total[out].x = over_lanes(s);
  }
}

// The means and variances of a row, in all lanes.
template <int P>
ZS_DEVICE void reduce(const float* operand, int lane, float2 (&total)[kWidest]) {
  // Of what the lane has of the values that a result takes, and their number.
  auto sum_of = [&](int out, auto value, int& count) {
    float sum = 0.0f;
    count = 0;
#pragma unroll
    for (int in = 0; in < Phase<P>::ins; ++in) {
      if (slot_of<P>(out, in) < 0) continue;
      count += kHidden;
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const int k = (q * kLanes + lane) * 4;
        const float4 x = reinterpret_cast<const float4*>(operand)[in * kPadded / 4 + k / 4];
        sum += (value(x.x, k) + value(x.y, k + 1)) + (value(x.z, k + 2) + value(x.w, k + 3));
      }
    }
    return over_lanes(sum);
  };
#pragma unroll
  for (int out = 0; out < Phase<P>::outs; ++out) {
    int count;
    const float sum = sum_of(out, [](float x, int) { return x; }, count);
    const float mean = sum / static_cast<float>(count);
    total[out].x = mean;
    if (!(kVariances[P] >> out & 1)) continue;
    auto squared = [&](float x, int k) { return k < kHidden ? (x - mean) * (x - mean) : 0.0f; };
    const float away = sum_of(out, squared, count);
    total[out].x = away / static_cast<float>(count);
  }
}

// What a thread carries from step to step.
struct Carried {
  Constants constants;
  Sums sums = {};
  float2 state[kStates > 0 ? kStates : 1];
};

// Stores an item's part of an operand where every thread finds it.
template <int P>
ZS_DEVICE void publish(const Block& block, const Item& item, int place, const float2 (&operand)[kWidest]) {
#pragma unroll
  for (int g = 0; g < Phase<P>::ins; ++g)
    if (item.count) operand_of<P>(block.shared, place, head_of(block))[g * kPadded + item.unit] = operand[g].x;
}

// One phase of a step; `place` of its operand, `loaded` of this step and then of one kAhead steps later.
template <int P>
ZS_DEVICE void work(const Block& block, const Item& item, const Weight<P>& weight, Carried& carried, i64 index,
                    int place, Pass::Loaded& loaded) {
  float2 total[kWidest] = {};
  block_barrier();  // the operand is there, and the one before it has been read
  const float* const operand = operand_of<P>(block.shared, place, head_of(block));
  if constexpr (Phase<P>::reduces)
    reduce<P>(operand, block.thread % kLanes, total);
  else
    multiply<P>(weight, operand, block.thread % kLanes, total);
  auto hand_on = [&](const float2(&operand)[kWidest]) {
    constexpr int next = P == kLastPhase ? 0 : P + 1;
    publish<next>(block, item, next ? place : place ^ 1, operand);
  };
  const Turn<decltype(hand_on)> turn{block.a, item, carried.constants, carried.state, carried.sums, hand_on};
  Pass::template consume<P>(turn, index, Pass::Inputs(loaded), total);
  Pass::template fetch<P>(block.a, item, min(index + kAhead, block.a.T - 1), loaded);
}

// The weights of a phase and of those after it, and what these have loaded.
template <int P>
struct Phases {
  Weight<P> weight;
  Pass::Loaded loaded[kAhead];
  Phases<P + 1> others;

  ZS_DEVICE void load(const Arguments& a, const Item& item, int lane) {
    weight.load(a, item.chain, item.unit, lane);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) Pass::template fetch<P>(a, item, min(static_cast<i64>(k), a.T - 1), loaded[k]);
    others.load(a, item, lane);
  }
  ZS_DEVICE void work_on(const Block& block, const Item& item, Carried& carried, i64 index, int k) {
    work<P>(block, item, weight, carried, index, k % 2, loaded[k]);
    others.work_on(block, item, carried, index, k);
  }
};
template <>
struct Phases<kPhases> {
  ZS_DEVICE void load(const Arguments&, const Item&, int) {}
  ZS_DEVICE void work_on(const Block&, const Item&, Carried&, i64, int) {}
};

extern "C" __global__ void __launch_bounds__(kThreads, kResident) scan(const __grid_constant__ Arguments a) {
  extern __shared__ __align__(128) char shared[];
  const Block block(a, shared);
  const int lane = block.thread % kLanes;
  const Item item = block.item(0, 0);
  Phases<0> phases;
  phases.load(a, item, lane);

  Carried carried;
  carried.constants.load(a, item);
  for (int k = block.thread; k < 2 * kOperand; k += kThreads) operand_of<0>(shared, 0, 0)[k] = 0.0f;
  block_barrier();
  auto hand_on = [&](const float2(&operand)[kWidest]) { publish<0>(block, item, 0, operand); };
  Pass::begin(Turn<decltype(hand_on)>{a, item, carried.constants, carried.state, carried.sums, hand_on});
#pragma unroll 1
  for (i64 index = 0; index < a.T; index += kAhead)
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (index + k >= a.T) break;
      phases.work_on(block, item, carried, index + k, k);
    }
  const Sums sums[1] = {carried.sums};
  store_sums(block, sums);
}
