// One step backward, for one item: what is the same for every cell.
//
// The product of step s gives the gradient of h[s-1]. With it the gates of step s-1 follow at once; they are the
// operand of the next product.
#pragma once

namespace backward {

// What a step reads: values of the gates, the gradient of its h, and the cell's own fields.
template <class Cell>
struct Loaded {
  Pair mask;               // of the step whose product arrives
  Pair gates[kGates], dh;  // of the step before it, as are the cell's own
  typename Cell::Backward::template Fields<Pair> own;
};
template <class Cell>
struct Inputs {
  float2 mask, gates[kGates], dh;
  typename Cell::Backward::template Fields<float2> own;
  ZS_DEVICE explicit Inputs(const Loaded<Cell>& in)
      : mask(in.mask.value()), dh(in.dh.value()), own(Cell::Backward::values(in.own)) {
#pragma unroll
    for (int k = 0; k < kGates; ++k) gates[k] = in.gates[k].value();
  }
};

// The value of the step before s of [T,N,D,H]; before the first step, the initial value.
ZS_DEVICE Pair take_earlier(const Arguments& a, const Item& w, const Stored* steps, const Stored* first, bool has_first,
                            i64 s) {
  const Stored* from = s > 0 ? steps + pair_at(a, w, output_time(a, w, s - 1)) : first + w.pair;
  return take(from, s > 0 || has_first ? w.count : 0);
}
// Where the gradients of the gates of step s go.
template <class Turn>
ZS_DEVICE Stored* gate_gradients(const Turn& turn, i64 s) {
  return turn.a.d_gates + gates_at(turn.a, turn.item, input_time(turn.a, turn.item, s));
}
// The gradient of the last state that comes from outside.
template <class Turn>
ZS_DEVICE float2 last_gradient(const Turn& turn) {
  if constexpr (kLastState) return load_pair(turn.a.d_last + turn.item.pair, turn.item.count);
  return {0.0f, 0.0f};
}
// At the first step: stores the gradient of the initial state and gives the state itself.
template <class Turn>
ZS_DEVICE float2 end(const Turn& turn, float2 dh) {
  if constexpr (kHasState) {
    turn.store(turn.a.d_state0 + turn.item.pair, dh);
    return load_pair(turn.a.state0 + turn.item.pair, turn.item.count);
  }
  return {0.0f, 0.0f};
}
// Stores h[s-1]·m[s], which dR is contracted with.
template <class Turn>
ZS_DEVICE void store_left(const Turn& turn, i64 s, float2 h, float2 mask) {
  if constexpr (kWantLeft) {
    if constexpr (kHasMask) h = times(h, mask);
    turn.store(turn.a.left + pair_at(turn.a, turn.item, input_time(turn.a, turn.item, s)), h);
  }
}
template <class Turn>
ZS_DEVICE void sum_biases(const Turn& turn, const float2 (&gates)[kGates]) {
  if constexpr (kSumBias) {
#pragma unroll
    for (int g = 0; g < kGates; ++g) turn.sums.bias[g].add(gates[g]);
  }
}

template <class Cell>
struct Pass {
  using Loaded = backward::Loaded<Cell>;
  using Inputs = backward::Inputs<Cell>;

  static ZS_DEVICE void fetch_step(const Arguments& a, const Item& w, i64 s, Loaded& in) {
    const i64 t = output_time(a, w, s), pair = pair_at(a, w, t);
#pragma unroll
    for (int k = 0; k < kGates; ++k) in.gates[k] = take(a.saved + gates_at(a, w, t) + slot(k) * kHidden, w.count);
    in.dh = take(a.d_state + pair, w.count);
    Cell::Backward::fetch(a, w, s, pair, in.own);
  }
  template <int P>
  static ZS_DEVICE void fetch(const Arguments& a, const Item& w, i64 i, Loaded& in) {
    const i64 s = a.T - 1 - i;
    if constexpr (kHasMask) in.mask = take_mask(a, w, s);
    if constexpr (P == kLastPhase) fetch_step(a, w, s > 0 ? s - 1 : 0, in);
  }
  template <int P>
  static ZS_DEVICE void fetch_ahead(const Arguments& a, const Item& w, i64 i) {
    const i64 s = a.T - 1 - i - 4;  // the latency of device memory
    if (P != kLastPhase || s < 0 || !w.count || (w.unit * kBytes) % 32) return;
    const i64 t = output_time(a, w, s), pair = pair_at(a, w, t);
#pragma unroll
    for (int k = 0; k < kGates; ++k) prefetch(a.saved + gates_at(a, w, t) + slot(k) * kHidden);
    prefetch(a.d_state + pair);
    if constexpr (kHasMask) prefetch(mask_at(a, w, s));
    Cell::Backward::fetch_ahead(a, pair);
  }

  template <class Turn>
  static ZS_DEVICE void begin(const Turn& turn) {
    const float2 dh = last_gradient(turn);
    Loaded in = {};
    fetch_step(turn.a, turn.item, turn.a.T - 1, in);
    Cell::Backward::begin(turn, Inputs(in), dh);
  }
  template <int P, class Turn>
  static ZS_DEVICE void consume(const Turn& turn, i64 i, const Inputs& in, const float2 (&sum)[kGates]) {
    const float2 dh = kHasMask ? times(sum[0], in.mask) : sum[0];
    Cell::Backward::template consume<P>(turn, turn.a.T - 1 - i, in, sum[0], dh);
  }
};

}  // namespace backward
