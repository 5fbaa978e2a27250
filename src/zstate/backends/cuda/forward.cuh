// One step forward, for one item: what is the same for every cell.
#pragma once

namespace forward {

struct Loaded {
  Pair x[kGates];  // projected input
  Pair mask;       // of the next product
};
struct Inputs {
  float2 x[kGates], mask;
  ZS_DEVICE explicit Inputs(const Loaded& in) : mask(in.mask.value()) {
#pragma unroll
    for (int k = 0; k < kGates; ++k) x[k] = in.x[k].value();
  }
};

// Saves a gate for the gradient.
template <class Turn>
ZS_DEVICE void save(const Turn& turn, i64 t, int gate, float2 x) {
  if constexpr (kSaveGates) turn.store(turn.a.saved + gates_at(turn.a, turn.item, t) + slot(gate) * kHidden, x);
}

template <class Cell>
struct Pass {
  using Loaded = forward::Loaded;
  using Inputs = forward::Inputs;

  template <int P>
  static ZS_DEVICE constexpr bool makes(int gate) {
    return gate >= Phase<P>::first_gate && gate < Phase<P>::first_gate + Phase<P>::gates_out;
  }
  template <int P>
  static ZS_DEVICE void fetch(const Arguments& a, const Item& w, i64 s, Loaded& in) {
    const Stored* x = a.gates_x + gates_at(a, w, input_time(a, w, s));
#pragma unroll
    for (int k = 0; k < kGates; ++k)
      if (makes<P>(k)) in.x[k] = take(x + slot(k) * kHidden, w.count);
    if constexpr (kHasMask) {
      const i64 next = P == kLastPhase ? s + 1 : s;
      in.mask = take_mask(a, w, next < a.T ? next : s);
    }
  }
  template <int P>
  static ZS_DEVICE void fetch_ahead(const Arguments& a, const Item& w, i64 s) {
    constexpr int steps = 3;  // the latency of device memory
    if (s + steps >= a.T || !w.count || (w.unit * kBytes) % 32) return;
    const Stored* x = a.gates_x + gates_at(a, w, input_time(a, w, s + steps));
#pragma unroll
    for (int k = 0; k < kGates; ++k)
      if (makes<P>(k)) prefetch(x + slot(k) * kHidden);
    if constexpr (kHasMask && P == kLastPhase) prefetch(mask_at(a, w, s + steps));
  }

  // The operand of the first product: h[-1]·m[0].
  template <class Turn>
  static ZS_DEVICE void begin(const Turn& turn) {
    const Arguments& a = turn.a;
    const Item& w = turn.item;
    float2 h = {0.0f, 0.0f};
    if constexpr (kHasState) h = load_pair(a.state0 + w.pair, w.count);
    Cell::Forward::begin(turn, h);
    float2 operand[kGates] = {};
    operand[0] = kHasMask ? times(h, take_mask(a, w, 0).value()) : h;
    turn.hand_on(operand);
  }

  template <int P, class Turn>
  static ZS_DEVICE void consume(const Turn& turn, i64 s, const Inputs& in, const float2 (&sum)[kGates]) {
    const i64 t = output_time(turn.a, turn.item, s);
    float2 operand[kGates] = {};
    const float2 h = Cell::Forward::template step<P>(turn, t, in, sum, [&](float2 h) {
      operand[0] = kHasMask ? times(h, in.mask) : h;
      turn.hand_on(operand);
    });
    if constexpr (P == kLastPhase) turn.store(turn.a.state + pair_at(turn.a, turn.item, t), h);
  }
};

}  // namespace forward
