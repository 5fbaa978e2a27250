// The GRU, gates z, r, o, in both forms. Forward it keeps h; backward what of the gradient of h bypasses the products.
//
// Where the reset comes before the product, a step has two phases, and more is kept between them.
#pragma once

struct Gru {
  static constexpr bool kLooksAhead = false;

  struct Forward {
    enum { kH, kZ };  // what is kept

    template <class Turn>
    static ZS_DEVICE void begin(const Turn& turn, float2 h) {
      turn.keep(kH, h);
    }
    template <int P, class Turn, class Hand>
    static ZS_DEVICE float2 step(const Turn& turn, i64 t, const forward::Inputs& in, const float2 (&sum)[kGates],
                                 const Hand& hand) {
      const Activations acts;
      const float2 before = turn.recall(kH);
      float2 z, r, o, h = {0.0f, 0.0f};
      if constexpr (P == 0) {
        z = activated(acts.kind(0), plus(in.x[0], sum[0]));
        r = activated(acts.kind(1), plus(in.x[1], sum[1]));
      }
      if constexpr (P == 0 && !kResetAfter) {
        hand(times(before, r));
        turn.keep(kZ, z);
      } else {
        if constexpr (kResetAfter) {
          float2 recurrent = sum[2];
          if constexpr (kHasBias2) recurrent = plus(recurrent, turn.constants.bias2);
          o = both([&](Real x, Real recurrent, Real r) { return gru_candidate_after(acts, x, recurrent, r); }, in.x[2],
                   recurrent, r);
        } else {
          z = turn.recall(kZ);
          o = activated(acts.kind(2), plus(in.x[2], sum[0]));
        }
        h = both([&](Real z, Real before, Real o) { return gru_blend(kFlipZ, z, before, o); }, z, before, o);
        hand(h);
        turn.keep(kH, h);
        forward::save(turn, t, 2, o);
      }
      if constexpr (P == 0) {
        forward::save(turn, t, 0, z);
        forward::save(turn, t, 1, r);
      }
      return h;
    }
  };

  struct Backward {
    enum { kDh, kDz, kMasked, kR };  // what is kept; the last three only if the reset comes before the product
    template <class Two>
    struct Fields {
      Two h_before, mask, unreset;
    };
    using Inputs = backward::Inputs<Gru>;

    static ZS_DEVICE Fields<float2> values(const Fields<Pair>& in) {
      return {in.h_before.value(), in.mask.value(), in.unreset.value()};
    }
    static ZS_DEVICE void fetch(const Arguments& a, const Item& w, i64 s, i64 pair, Fields<Pair>& in) {
      in.h_before = backward::take_earlier(a, w, a.state, a.state0, kHasState, s);
      if constexpr (kResetAfter) in.unreset = take(a.unreset + pair, kHasState || s > 0 ? w.count : 0);
      if constexpr (kHasMask) in.mask = take_mask(a, w, s);
    }
    static ZS_DEVICE void fetch_ahead(const Arguments& a, i64 pair) {
      prefetch(a.state + pair);
      if constexpr (kResetAfter) prefetch(a.unreset + pair);
    }

    template <class Turn>
    static ZS_DEVICE void begin(const Turn& turn, const Inputs& in, float2 dh) {
      gates(turn, turn.a.T - 1, in, dh);
    }
    template <int P, class Turn>
    static ZS_DEVICE void consume(const Turn& turn, i64 s, const Inputs& in, float2 product, float2 dh) {
      if constexpr (P == 0 && !kResetAfter) {
        reset(turn, s, product, dh);
      } else {
        dh = plus(dh, turn.recall(kDh));
        if (s > 0)
          gates(turn, s - 1, in, dh);
        else
          backward::end(turn, dh);
      }
    }
    // The first of two phases: `product` is the gradient of h[s-1]·r·m, dh that of h[s-1]·r.
    template <class Turn>
    static ZS_DEVICE void reset(const Turn& turn, i64 s, float2 product, float2 dh) {
      const float2 masked = turn.recall(kMasked), r = turn.recall(kR);
      const float2 dr = reset_gradient(r, times(product, masked));
      float2 operand[kGates] = {};
      operand[0] = turn.recall(kDz);
      operand[1] = dr;
      turn.hand_on(operand);
      turn.keep(kDh, plus(turn.recall(kDh), times(dh, r)));
      turn.store(backward::gate_gradients(turn, s) + slot(1) * kHidden, dr);
      if constexpr (kSumBias) turn.sums.bias[1].add(dr);
    }
    template <class Turn>
    static ZS_DEVICE void gates(const Turn& turn, i64 s, const Inputs& in, float2 dh) {
      const Activations acts;
      const Arguments& a = turn.a;
      const i64 t = input_time(a, turn.item, s), pair = pair_at(a, turn.item, t);
      Stored* const out = backward::gate_gradients(turn, s);
      const float2 z = in.gates[0], r = in.gates[1], o = in.gates[2], h = in.own.h_before;
      float2 operand[kGates] = {};
      dh = plus(dh, in.dh);
      const GruGradient<Real> one = gru_blend_backward(acts, kFlipZ, Real{z.x}, Real{o.x}, Real{h.x}, Real{dh.x});
      const GruGradient<Real> two = gru_blend_backward(acts, kFlipZ, Real{z.y}, Real{o.y}, Real{h.y}, Real{dh.y});
      const float2 dz = {one.da_z.v, two.da_z.v}, du = {one.da_o.v, two.da_o.v};
      const float2 masked = kHasMask ? times(h, in.own.mask) : h;
      if constexpr (kResetAfter) {
        float2 unreset = in.own.unreset;
        // Without an initial state the product of the first step is one with zeros: it is not computed.
        if (!kHasState && s == 0) unreset = kHasBias2 ? turn.constants.bias2 : make_float2(0.0f, 0.0f);
        const float2 dr = reset_gradient(r, times(du, unreset)), reset = times(du, r);
        operand[0] = dz;
        operand[1] = dr;
        operand[2] = reset;
        turn.hand_on(operand);
        turn.store(out + slot(1) * kHidden, dr);
        if constexpr (kWantLeft) {
          Stored* const products = a.left_reset + gates_at(a, turn.item, t);
#pragma unroll
          for (int g = 0; g < 3; ++g) turn.store(products + slot(g) * kHidden, operand[g]);
        }
        if constexpr (kSumBias2) turn.sums.bias2.add(reset);
        if constexpr (kSumBias) turn.sums.bias[1].add(dr);
      } else {
        operand[0] = du;
        turn.hand_on(operand);
        turn.keep(kDz, dz);
        turn.keep(kMasked, masked);
        turn.keep(kR, r);
        if constexpr (kWantLeft) turn.store(a.left_reset + pair, times(masked, r));
      }
      turn.keep(kDh, {one.dh_prev.v, two.dh_prev.v});
      turn.store(out + slot(0) * kHidden, dz);
      turn.store(out + slot(2) * kHidden, du);
      if constexpr (kWantLeft) turn.store(a.left + pair, masked);
      if constexpr (kSumBias) {
        turn.sums.bias[0].add(dz);
        turn.sums.bias[2].add(du);
      }
    }
    static ZS_DEVICE float2 reset_gradient(float2 r, float2 dr) {
      const Activations acts;
      return both([&](Real r, Real dr) { return gru_reset_gradient(acts, r, dr); }, r, dr);
    }
  };
};
using Cell = Gru;
