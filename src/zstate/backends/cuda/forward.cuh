// One step forward, for a pair of units of one row: what it reads, what it makes of the sums, what it hands on.
#pragma once

struct Loaded {
  Pair x[G];  // projected input
  Pair m;     // mask of the next product
};
struct Inputs {
  float2 x[G], m;
  ZS_DEVICE explicit Inputs(const Loaded& in) : m(in.m.value()) {
#pragma unroll
    for (int k = 0; k < G; ++k) x[k] = in.x[k].value();
  }
};
struct Constants {
  float2 peephole[4], bias2;
};

template <int P> ZS_DEVICE void fetch(const Arguments& a, const Where& w, i64 s, Loaded& in) {
  const Stored* x = a.gates_x + gates_at(a, w, in_time(a, w, s));
#pragma unroll
  for (int k = 0; k < G; ++k)
    if (!kTwoPhases || (P == 1) == (k == 2)) in.x[k] = take(x + slot(k) * H, w.count);
  if constexpr (HAS_MASK) {
    const i64 next = kTwoPhases && P == 0 ? s : s + 1;
    in.m = take_mask(a, w, next < a.T ? next : s);
  }
}
template <int P> ZS_DEVICE void fetch_ahead(const Arguments& a, const Where& w, i64 s) {
  constexpr int steps = 3;  // as far as device memory is away
  if (s + steps >= a.T || !w.count || (w.unit * kBytes) % 32) return;
  const Stored* x = a.gates_x + gates_at(a, w, in_time(a, w, s + steps));
#pragma unroll
  for (int k = 0; k < G; ++k)
    if (!kTwoPhases || (P == 1) == (k == 2)) prefetch(x + slot(k) * H);
  if constexpr (HAS_MASK && P == kPhases - 1) prefetch(mask_at(a, w, s + steps));
}

// The operand of the first product: h[-1]·m[0].
template <class HandOn>
ZS_DEVICE void begin(const Arguments& a, const Where& w, const Constants&, float2* state, const HandOn& hand_on, Sums&) {
  float2 h = {0.0f, 0.0f};
  if constexpr (HAS_STATE) h = load_pair(a.state0 + w.pair, w.count);
  if constexpr (CELL == kGru) keep(w, state, h);
  if constexpr (CELL == kLstm) {
    float2 c = {0.0f, 0.0f};
    if constexpr (HAS_CELL) c = load_pair(a.cell0 + w.pair, w.count);
    keep(w, state, c);
  }
  float2 operand[4] = {};
  operand[0] = HAS_MASK ? times(h, take_mask(a, w, 0).value()) : h;
  hand_on(operand);
}

// hand_on(operand) starts the exchange: everything that can wait comes after it.
template <int P, class HandOn>
ZS_DEVICE void consume(const Arguments& a, const Where& w, i64 s, const Inputs& in, const Constants& k, const float2 (&sum)[G],
                       float2* state, const HandOn& hand_on, Sums&) {
  const i64 t = out_time(a, w, s);
  const Acts acts;
  float2 operand[4] = {};
  auto hand = [&](float2 h) {
    operand[0] = HAS_MASK ? times(h, in.m) : h;
    hand_on(operand);
  };
  Stored* saved = a.saved + (SAVE_Z ? gates_at(a, w, t) : 0);
  float2 h = {0.0f, 0.0f};
  if constexpr (CELL == kRnn) {
    const float2 z = plus(in.x[0], sum[0]);
    h = {rnn_forward(acts, Real{z.x}).v, rnn_forward(acts, Real{z.y}).v};
    hand(h);
    if constexpr (SAVE_Z) store_pair(saved, z, w.count);
  } else if constexpr (CELL == kLstm) {
    float2 c = recall(w, state), gate[4];
    Real before[2][4];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      float2 z = plus(in.x[g], sum[g]);
      if constexpr (HAS_PEEPHOLE) z = plus(z, times(k.peephole[g], c));
      before[0][g].v = z.x;
      before[1][g].v = z.y;
    }
    const LstmState<Real> one = lstm_forward(acts, before[0], Real{c.x}), two = lstm_forward(acts, before[1], Real{c.y});
    c = {one.c.v, two.c.v};
    h = {one.h.v, two.h.v};
    hand(h);
    keep(w, state, c);
#pragma unroll
    for (int g = 0; g < 4; ++g) gate[g] = {one.gate[g].v, two.gate[g].v};
    if constexpr (SAVE_C) store_pair(a.cell + pair_at(a, w, t), c, w.count);
    if constexpr (SAVE_Z) {
#pragma unroll
      for (int g = 0; g < 4; ++g) store_pair(saved + slot(g) * H, gate[g], w.count);
    }
  } else {
    const float2 before = recall(w, state);
    float2 z, r, o;
    if constexpr (P == 0) {
      z = activated(acts.kind(0), plus(in.x[0], sum[0]));
      r = activated(acts.kind(1), plus(in.x[1], sum[1]));
    }
    if constexpr (kTwoPhases && P == 0) {
      hand(times(before, r));
      keep(w, state + kStateStride, z);
    } else {
      if constexpr (kTwoPhases) {
        z = recall(w, state + kStateStride);
        o = activated(acts.kind(2), plus(in.x[2], sum[0]));
      } else {
        float2 recurrent = sum[2];
        if constexpr (HAS_BIAS2) recurrent = plus(recurrent, k.bias2);
        o = {gru_candidate_after(acts, Real{in.x[2].x}, Real{recurrent.x}, Real{r.x}).v,
             gru_candidate_after(acts, Real{in.x[2].y}, Real{recurrent.y}, Real{r.y}).v};
      }
      h = {gru_blend(FLIP_Z, Real{z.x}, Real{before.x}, Real{o.x}).v, gru_blend(FLIP_Z, Real{z.y}, Real{before.y}, Real{o.y}).v};
      hand(h);
      keep(w, state, h);
      if constexpr (SAVE_Z) store_pair(saved + slot(2) * H, o, w.count);
    }
    if constexpr (SAVE_Z && P == 0) {
      store_pair(saved + slot(0) * H, z, w.count);
      store_pair(saved + slot(1) * H, r, w.count);
    }
  }
  if constexpr (P == kPhases - 1) store_pair(a.state + pair_at(a, w, t), h, w.count);
}
