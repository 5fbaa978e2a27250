// One step backward, for a pair of units of one row. The product of step s gives the gradient of h[s-1]; with it the gates of
// step s-1 follow at once, and are the operand of the next product.
#pragma once

template <class Two> struct Fields {
  Two m;                                     // mask of the step whose product arrives
  Two z[G], c, c_before, h_before, dh, dc;   // of the step before it
  Two m_before, unreset;
};
using Loaded = Fields<Pair>;
struct Inputs : Fields<float2> {
  ZS_DEVICE explicit Inputs(const Loaded& in)
      : Fields<float2>{in.m.value(), {}, in.c.value(), in.c_before.value(), in.h_before.value(), in.dh.value(), in.dc.value(),
                       in.m_before.value(), in.unreset.value()} {
#pragma unroll
    for (int k = 0; k < G; ++k) z[k] = in.z[k].value();
  }
};
struct Constants {
  float2 peephole[4], bias2;
};

ZS_DEVICE Pair earlier(const Arguments& a, const Where& w, const Stored* steps, const Stored* first, bool has_first, i64 s) {
  const Stored* from = s > 0 ? steps + pair_at(a, w, out_time(a, w, s - 1)) : first + w.pair;
  return take(from, s > 0 || has_first ? w.count : 0);
}
ZS_DEVICE void fetch_step(const Arguments& a, const Where& w, i64 s, Loaded& in) {
  const i64 t = out_time(a, w, s), pair = pair_at(a, w, t);
#pragma unroll
  for (int k = 0; k < G; ++k) in.z[k] = take(a.saved + gates_at(a, w, t) + slot(k) * H, w.count);
  in.dh = take(a.d_state + pair, w.count);
  if constexpr (CELL == kLstm) {
    in.c = take(a.cell + pair, w.count);
    in.c_before = earlier(a, w, a.cell, a.cell0, HAS_CELL, s);
    if constexpr (EVERY_CELL) in.dc = take(a.d_cell + pair, w.count);
  }
  if constexpr (CELL == kGru) {
    in.h_before = earlier(a, w, a.state, a.state0, HAS_STATE, s);
    if constexpr (RESET_AFTER) in.unreset = take(a.unreset + pair, HAS_STATE || s > 0 ? w.count : 0);
    if constexpr (HAS_MASK) in.m_before = take_mask(a, w, s);
  }
}
template <int P> ZS_DEVICE void fetch(const Arguments& a, const Where& w, i64 i, Loaded& in) {
  const i64 s = a.T - 1 - i;
  if constexpr (HAS_MASK) in.m = take_mask(a, w, s);
  if constexpr (P == kPhases - 1) fetch_step(a, w, s > 0 ? s - 1 : 0, in);
}
template <int P> ZS_DEVICE void fetch_ahead(const Arguments& a, const Where& w, i64 i) {
  const i64 s = a.T - 1 - i - 4;  // as far as device memory is away
  if (P != kPhases - 1 || s < 0 || !w.count || (w.unit * kBytes) % 32) return;
  const i64 t = out_time(a, w, s), pair = pair_at(a, w, t);
#pragma unroll
  for (int k = 0; k < G; ++k) prefetch(a.saved + gates_at(a, w, t) + slot(k) * H);
  prefetch(a.d_state + pair);
  if constexpr (HAS_MASK) prefetch(mask_at(a, w, s));
  if constexpr (CELL == kLstm) prefetch(a.cell + pair);
  if constexpr (CELL == kGru) prefetch(a.state + pair);
  if constexpr (CELL == kGru && RESET_AFTER) prefetch(a.unreset + pair);
  if constexpr (CELL == kLstm && EVERY_CELL) prefetch(a.d_cell + pair);
}

// The gates of step s from the gradient of h[s]; later steps have left dc, or nothing, in the state.
template <class HandOn>
ZS_DEVICE void gates(const Arguments& a, const Where& w, i64 s, const Inputs& in, const Constants& k, float2 dh, float2 dc,
                     float2* state, const HandOn& hand_on, Sums& sums) {
  const Acts acts;
  float2 operand[4] = {};
  const i64 t = in_time(a, w, s), pair = pair_at(a, w, t);
  Stored* out = a.d_gates + gates_at(a, w, t);
  dh = plus(dh, in.dh);
  if constexpr (CELL == kRnn) {
    operand[0] = {rnn_backward(acts, Real{in.z[0].x}, Real{dh.x}).v, rnn_backward(acts, Real{in.z[0].y}, Real{dh.y}).v};
    hand_on(operand);
    store_pair(out, operand[0], w.count);
  } else if constexpr (CELL == kLstm) {
    if constexpr (EVERY_CELL) dc = plus(dc, in.dc);
    Real gate[2][4];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      gate[0][g].v = in.z[g].x;
      gate[1][g].v = in.z[g].y;
    }
    const LstmGradient<Real> one = lstm_backward(acts, gate[0], Real{in.c.x}, Real{in.c_before.x}, Real{dh.x}, Real{dc.x});
    const LstmGradient<Real> two = lstm_backward(acts, gate[1], Real{in.c.y}, Real{in.c_before.y}, Real{dh.y}, Real{dc.y});
    dc = {one.dc_prev.v, two.dc_prev.v};
#pragma unroll
    for (int g = 0; g < 4; ++g) operand[g] = {one.da[g].v, two.da[g].v};
    hand_on(operand);
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      if constexpr (HAS_PEEPHOLE) dc = plus(dc, times(operand[g], k.peephole[g]));
      if constexpr (SUM_PEEPHOLE) sums.peephole[g].add(times(operand[g], in.c_before));
      store_pair(out + slot(g) * H, operand[g], w.count);
    }
    keep(w, state, dc);
  } else {
    const float2 z = in.z[0], r = in.z[1], o = in.z[2], h = in.h_before;
    const GruGradient<Real> one = gru_blend_backward(acts, FLIP_Z, Real{z.x}, Real{o.x}, Real{h.x}, Real{dh.x});
    const GruGradient<Real> two = gru_blend_backward(acts, FLIP_Z, Real{z.y}, Real{o.y}, Real{h.y}, Real{dh.y});
    const float2 dz = {one.da_z.v, two.da_z.v}, du = {one.da_o.v, two.da_o.v};
    const float2 masked = HAS_MASK ? times(h, in.m_before) : h;
    if constexpr (RESET_AFTER) {
      float2 unreset = in.unreset;
      if (!HAS_STATE && s == 0) unreset = HAS_BIAS2 ? k.bias2 : make_float2(0.0f, 0.0f);  // a product with zeros: not computed
      const float2 dr = reset_gradient(acts, r, times(du, unreset)), reset = times(du, r);
      operand[0] = dz;
      operand[1] = dr;
      operand[2] = reset;
      hand_on(operand);
      store_pair(out + slot(1) * H, dr, w.count);
      if constexpr (WANT_LEFT) {
        Stored* products = a.left_reset + gates_at(a, w, t);
        store_pair(products + slot(0) * H, dz, w.count);
        store_pair(products + slot(1) * H, dr, w.count);
        store_pair(products + slot(2) * H, reset, w.count);
      }
      if constexpr (SUM_BIAS2) sums.bias2.add(reset);
      if constexpr (SUM_BIAS) sums.bias[1].add(dr);
    } else {
      operand[0] = du;
      hand_on(operand);
      keep(w, state + kStateStride, dz);
      keep(w, state + 2 * kStateStride, masked);
      keep(w, state + 3 * kStateStride, r);
      if constexpr (WANT_LEFT) store_pair(a.left_reset + pair, times(masked, r), w.count);
    }
    keep(w, state, {one.dh_prev.v, two.dh_prev.v});
    store_pair(out + slot(0) * H, dz, w.count);
    store_pair(out + slot(2) * H, du, w.count);
    if constexpr (WANT_LEFT) store_pair(a.left + pair, masked, w.count);
    if constexpr (SUM_BIAS) {
      sums.bias[0].add(dz);
      sums.bias[2].add(du);
    }
  }
  if constexpr (SUM_BIAS && CELL != kGru) {
#pragma unroll
    for (int g = 0; g < G; ++g) sums.bias[g].add(operand[g]);
  }
}

template <class HandOn>
ZS_DEVICE void begin(const Arguments& a, const Where& w, const Constants& k, float2* state, const HandOn& hand_on, Sums& sums) {
  float2 dh = {0.0f, 0.0f}, dc = {0.0f, 0.0f};
  Loaded in = {};
  if constexpr (LAST_STATE) dh = load_pair(a.d_last + w.pair, w.count);
  if constexpr (LAST_CELL) dc = load_pair(a.d_cell + w.pair, w.count);
  fetch_step(a, w, a.T - 1, in);
  gates(a, w, a.T - 1, Inputs(in), k, dh, dc, state, hand_on, sums);
}

template <int P, class HandOn>
ZS_DEVICE void consume(const Arguments& a, const Where& w, i64 i, const Inputs& in, const Constants& k, const float2 (&sum)[G],
                       float2* state, const HandOn& hand_on, Sums& sums) {
  const i64 s = a.T - 1 - i;
  const Acts acts;
  float2 dh = HAS_MASK ? times(sum[0], in.m) : sum[0];
  if constexpr (kTwoPhases && P == 0) {
    // sum is the gradient of h[s-1]·r·m.
    const float2 masked = recall(w, state + 2 * kStateStride), r = recall(w, state + 3 * kStateStride);
    const float2 dr = reset_gradient(acts, r, times(sum[0], masked));
    float2 operand[4] = {};
    operand[0] = recall(w, state + kStateStride);
    operand[1] = dr;
    hand_on(operand);
    keep(w, state, plus(recall(w, state), times(dh, r)));
    store_pair(a.d_gates + gates_at(a, w, in_time(a, w, s)) + slot(1) * H, dr, w.count);
    if constexpr (SUM_BIAS) sums.bias[1].add(dr);
    return;
  }
  if constexpr (CELL == kGru) dh = plus(dh, recall(w, state));
  const float2 dc = CELL == kLstm ? recall(w, state) : make_float2(0.0f, 0.0f);
  float2 h = {0.0f, 0.0f};
  if (s > 0) {
    if constexpr (CELL == kLstm)
      h = {lstm_output(acts, Real{in.z[3].x}, Real{in.c.x}).v, lstm_output(acts, Real{in.z[3].y}, Real{in.c.y}).v};
    if constexpr (CELL == kRnn) h = activated(acts.kind(0), in.z[0]);
    gates(a, w, s - 1, in, k, dh, dc, state, hand_on, sums);
  } else {
    if constexpr (HAS_STATE) {
      store_pair(a.d_state0 + w.pair, dh, w.count);
      h = load_pair(a.state0 + w.pair, w.count);
    }
    if constexpr (CELL == kLstm && HAS_CELL) store_pair(a.d_cell0 + w.pair, dc, w.count);
  }
  if constexpr (CELL != kGru && WANT_LEFT) {
    if constexpr (HAS_MASK) h = times(h, in.m);
    store_pair(a.left + pair_at(a, w, in_time(a, w, s)), h, w.count);
  }
}

// The sums over time, one after the other: where the k-th is kept, and where it goes.
constexpr int kQuantities = (SUM_BIAS ? G : 0) + (SUM_PEEPHOLE ? 4 : 0) + (SUM_BIAS2 ? 1 : 0);
constexpr int kFirstPeephole = SUM_BIAS ? G : 0, kFirstBias2 = kFirstPeephole + (SUM_PEEPHOLE ? 4 : 0);

ZS_DEVICE float2 quantity(const Sums& sums, int k) {
  return (k >= kFirstBias2 ? sums.bias2 : k >= kFirstPeephole ? sums.peephole[k - kFirstPeephole] : sums.bias[k]).sum;
}
ZS_DEVICE Summed* sum_place(const Arguments& a, int k, int d) {
  if (k >= kFirstBias2) return a.bias2_sum + d * H;
  if (k >= kFirstPeephole) return a.peephole_sum + (d * 4 + slot(k - kFirstPeephole)) * H;
  return a.bias_sum + (d * G + slot(k)) * H;
}
