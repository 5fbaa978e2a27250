// The LSTM, gates i, f, z, o. Keeps c forward and the gradient of c backward.
#pragma once

struct Lstm {
  // A turn that saves its gates is long enough to look for the next operand before its end: 8% faster at H = 1024.
  static constexpr bool kLooksAhead = kSaveGates;
  // Whether the peephole of a gate looks at c[t-1]; that of o may look at c[t].
  static ZS_DEVICE constexpr bool sees_old_cell(int g) { return kHasPeephole && !(kPeepholeOnNewCell && g == 3); }

  struct Forward {
    template <class Turn>
    static ZS_DEVICE void begin(const Turn& turn, float2) {
      float2 c = {0.0f, 0.0f};
      if constexpr (kHasCell) c = load_pair(turn.a.cell0 + turn.item.pair, turn.item.count);
      turn.keep(0, c);
    }
    template <int P, class Turn, class Hand>
    static ZS_DEVICE float2 step(const Turn& turn, i64 t, const forward::Inputs& in, const float2 (&sum)[kGates],
                                 const Hand& hand) {
      const Activations acts;
      float2 c = turn.recall(0);
      Real before[2][4];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        float2 z = plus(in.x[g], sum[g]);
        if (sees_old_cell(g)) z = plus(z, times(turn.constants.peephole[g], c));
        before[0][g].v = z.x;
        before[1][g].v = z.y;
      }
      LstmState<Real> one, two;
      if constexpr (kPeepholeOnNewCell) {
        const Real p_one{turn.constants.peephole[3].x}, p_two{turn.constants.peephole[3].y};
        one = lstm_forward(acts, before[0], Real{c.x}, &p_one);
        two = lstm_forward(acts, before[1], Real{c.y}, &p_two);
      } else {
        one = lstm_forward(acts, before[0], Real{c.x});
        two = lstm_forward(acts, before[1], Real{c.y});
      }
      c = {one.c.v, two.c.v};
      const float2 h = {one.h.v, two.h.v};
      hand(h);
      turn.keep(0, c);
      if constexpr (kSaveCell) turn.store(turn.a.cell + pair_at(turn.a, turn.item, t), c);
#pragma unroll
      for (int g = 0; g < 4; ++g) forward::save(turn, t, g, {one.gate[g].v, two.gate[g].v});
      return h;
    }
  };

  struct Backward {
    template <class Two>
    struct Fields {
      Two c, c_before, dc;
    };
    using Inputs = backward::Inputs<Lstm>;

    static ZS_DEVICE Fields<float2> values(const Fields<Pair>& in) {
      return {in.c.value(), in.c_before.value(), in.dc.value()};
    }
    static ZS_DEVICE void fetch(const Arguments& a, const Item& w, i64 s, i64 pair, Fields<Pair>& in) {
      in.c = take(a.cell + pair, w.count);
      in.c_before = backward::take_earlier(a, w, a.cell, a.cell0, kHasCell, s);
      if constexpr (kEveryCell) in.dc = take(a.d_cell + pair, w.count);
    }
    static ZS_DEVICE void fetch_ahead(const Arguments& a, i64 pair) {
      prefetch(a.cell + pair);
      if constexpr (kEveryCell) prefetch(a.d_cell + pair);
    }

    template <class Turn>
    static ZS_DEVICE void begin(const Turn& turn, const Inputs& in, float2 dh) {
      float2 dc = {0.0f, 0.0f};
      if constexpr (kLastCell) dc = load_pair(turn.a.d_cell + turn.item.pair, turn.item.count);
      gates(turn, turn.a.T - 1, in, dh, dc);
    }
    template <int P, class Turn>
    static ZS_DEVICE void consume(const Turn& turn, i64 s, const Inputs& in, float2, float2 dh) {
      const Activations acts;
      const float2 dc = turn.recall(0);
      float2 h;
      if (s > 0) {
        h = both([&](Real o, Real c) { return lstm_output(acts, o, c); }, in.gates[3], in.own.c);
        gates(turn, s - 1, in, dh, dc);
      } else {
        h = backward::end(turn, dh);
        if constexpr (kHasCell) turn.store(turn.a.d_cell0 + turn.item.pair, dc);
      }
      backward::store_left(turn, s, h, in.mask);
    }
    // Later steps have left dc.
    template <class Turn>
    static ZS_DEVICE void gates(const Turn& turn, i64 s, const Inputs& in, float2 dh, float2 dc) {
      const Activations acts;
      Stored* const out = backward::gate_gradients(turn, s);
      const float2 c = in.own.c, c_before = in.own.c_before;
      dh = plus(dh, in.dh);
      if constexpr (kEveryCell) dc = plus(dc, in.own.dc);
      Real gate[2][4];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        gate[0][g].v = in.gates[g].x;
        gate[1][g].v = in.gates[g].y;
      }
      LstmGradient<Real> one, two;
      if constexpr (kPeepholeOnNewCell) {
        const Real p_one{turn.constants.peephole[3].x}, p_two{turn.constants.peephole[3].y};
        one = lstm_backward(acts, gate[0], Real{c.x}, Real{c_before.x}, Real{dh.x}, Real{dc.x}, &p_one);
        two = lstm_backward(acts, gate[1], Real{c.y}, Real{c_before.y}, Real{dh.y}, Real{dc.y}, &p_two);
      } else {
        one = lstm_backward(acts, gate[0], Real{c.x}, Real{c_before.x}, Real{dh.x}, Real{dc.x});
        two = lstm_backward(acts, gate[1], Real{c.y}, Real{c_before.y}, Real{dh.y}, Real{dc.y});
      }
      dc = {one.dc_prev.v, two.dc_prev.v};
      float2 operand[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) operand[g] = {one.da[g].v, two.da[g].v};
      turn.hand_on(operand);
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        if (sees_old_cell(g)) dc = plus(dc, times(operand[g], turn.constants.peephole[g]));
        if constexpr (kSumPeephole) turn.sums.peephole[g].add(times(operand[g], sees_old_cell(g) ? c_before : c));
        turn.store(out + slot(g) * kHidden, operand[g]);
      }
      turn.keep(0, dc);
      backward::sum_biases(turn, operand);
    }
  };
};
using Cell = Lstm;
