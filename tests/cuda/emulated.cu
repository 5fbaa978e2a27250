// The scan, for one item after the other: every phase of every step, as row.cu has it.
struct Unit {
  Item item;
  Constants constants;
  Sums sums = {};
  std::vector<float2> state{kStates > 0 ? kStates : 1, float2{NAN, NAN}};
  int n, chain, unit;
};
// What later turns recall was kept by earlier ones, not by this one.
template <class HandOn>
struct OneTurn : Turn<HandOn> {
  std::vector<float2> before;
  float2 recall(int k) const { return before[k]; }
};
using Operand = std::vector<float>;  // [N][chains][ins][kHidden]

template <int P>
void publish(Operand& to, const Unit& u, const float2 (&operand)[kWidest]) {
  constexpr int ins = Phase<P>::ins;
  for (int in = 0; in < ins; ++in)
    to[((u.n * kChains + u.chain) * ins + in) * kHidden + u.unit] = operand[in].x;
}
// The mean or the variance of the values that a result takes.
template <int P>
float reduced(const Operand& operand, const Unit& u, int out) {
  std::vector<float> values;
  for (int in = 0; in < Phase<P>::ins; ++in) {
    const auto from = operand.begin() + ((u.n * kChains + u.chain) * Phase<P>::ins + in) * kHidden;
    if (slot_of<P>(out, in) >= 0) values.insert(values.end(), from, from + kHidden);
  }
  double mean = 0.0, variance = 0.0;
  for (float x : values) mean += x / values.size();
  for (float x : values) variance += (x - mean) * (x - mean) / values.size();
  return kVariances[P] >> out & 1 ? variance : mean;
}
template <int P>
void multiply(const Arguments& a, const Operand& operand, const Unit& u, float2 (&total)[kWidest]) {
  constexpr int ins = Phase<P>::ins;
  for (int out = 0; out < Phase<P>::outs; ++out) {
    if constexpr (Phase<P>::reduces) {
      total[out] = {reduced<P>(operand, u, out), NAN};
      continue;
    }
    float sum = 0.0f;
    for (int in = 0; in < ins; ++in) {
      const int gate = slot_of<P>(out, in);
      if (gate < 0) continue;
      const float* const weight = a.weight + (u.chain * kGates + gate) * kHidden * kHidden;
      const float* const x = &operand[((u.n * kChains + u.chain) * ins + in) * kHidden];
      for (int k = 0; k < kHidden; ++k)
        sum += x[k] * (kBackward ? weight[k * kHidden + u.unit] : weight[u.unit * kHidden + k]);
    }
    total[out] = {sum, NAN};
  }
}
template <int P>
void work(const Arguments& a, std::vector<Unit>& units, Operand (&operands)[kPhases], i64 index) {
  constexpr int next = P == kLastPhase ? 0 : P + 1;
  const Operand given = operands[P];
  for (Unit& u : units) {
    Pass::Loaded loaded;
    Pass::template fetch<P>(a, u.item, index, loaded);
    Pass::template fetch_ahead<P>(a, u.item, index);
    float2 total[kWidest] = {};
    multiply<P>(a, given, u, total);
    auto hand_on = [&](const float2(&operand)[kWidest]) { publish<next>(operands[next], u, operand); };
    const OneTurn<decltype(hand_on)> turn{{a, u.item, u.constants, u.state.data(), u.sums, hand_on}, u.state};
    Pass::template consume<P>(turn, index, Pass::Inputs(loaded), total);
  }
  if constexpr (P < kLastPhase) work<P + 1>(a, units, operands, index);
}
template <int P = 0>
void make(const Arguments& a, Operand (&operands)[kPhases]) {
  operands[P].resize(a.N * kChains * Phase<P>::ins * kHidden);
  if constexpr (P < kLastPhase) make<P + 1>(a, operands);
}
extern "C" void run(const i64* words) {
  Arguments a;
  static_assert(sizeof(a) % 8 == 0, "words");
  std::memcpy(&a, words, sizeof(a));
  gridDim.x = a.N * kChains;
  std::vector<Unit> units;
  for (int b = 0; b < gridDim.x; ++b) {
    blockIdx.x = b;
    const Block block(a, nullptr);
    for (int unit = 0; unit < kHidden; ++unit) {
      Unit u{block.item_at(0, unit, 0, true)};
      u.n = block.tile_group, u.chain = block.chain, u.unit = unit;
      u.constants.load(a, u.item);
      units.push_back(u);
    }
  }
  Operand operands[kPhases];
  make(a, operands);
  for (Unit& u : units) {
    auto hand_on = [&](const float2(&operand)[kWidest]) { publish<0>(operands[0], u, operand); };
    Pass::begin(
        OneTurn<decltype(hand_on)>{{a, u.item, u.constants, u.state.data(), u.sums, hand_on}, u.state});
  }
  for (i64 index = 0; index < a.T; ++index) work<0>(a, units, operands, index);
  for (const Unit& u : units)
    for (int q = 0; q < Sums::count; ++q)
      Sums::place(a, q, u.item.direction)[u.n * a.sum_stride + u.item.column] = u.sums.at(q).x;
}
