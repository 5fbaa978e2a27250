// The single-gate RNN. zState is z itself; nothing is kept from step to step but h, which is the operand.
#pragma once

struct Rnn {
  static constexpr bool kLooksAhead = false;

  struct Forward {
    template <class Turn>
    static ZS_DEVICE void begin(const Turn&, float2) {}
    template <int P, class Turn, class Hand>
    static ZS_DEVICE float2 step(const Turn& turn, i64 t, const forward::Inputs& in, const float2 (&sum)[kGates],
                                 const Hand& hand) {
      const Activations acts;
      const float2 z = plus(in.x[0], sum[0]);
      const float2 h = both([&](Real z) { return rnn_forward(acts, z); }, z);
      hand(h);
      forward::save(turn, t, 0, z);
      return h;
    }
  };

  struct Backward {
    template <class Two>
    struct Fields {};
    using Inputs = backward::Inputs<Rnn>;

    static ZS_DEVICE Fields<float2> values(const Fields<Pair>&) { return {}; }
    static ZS_DEVICE void fetch(const Arguments&, const Item&, i64, i64, Fields<Pair>&) {}
    static ZS_DEVICE void fetch_ahead(const Arguments&, i64) {}

    template <class Turn>
    static ZS_DEVICE void begin(const Turn& turn, const Inputs& in, float2 dh) {
      gates(turn, turn.a.T - 1, in, dh);
    }
    template <int P, class Turn>
    static ZS_DEVICE void consume(const Turn& turn, i64 s, const Inputs& in, float2, float2 dh) {
      float2 h;
      if (s > 0) {
        h = activated(Activations().kind(0), in.gates[0]);
        gates(turn, s - 1, in, dh);
      } else {
        h = backward::end(turn, dh);
      }
      backward::store_left(turn, s, h, in.mask);
    }
    template <class Turn>
    static ZS_DEVICE void gates(const Turn& turn, i64 s, const Inputs& in, float2 dh) {
      const Activations acts;
      Stored* const out = backward::gate_gradients(turn, s);
      dh = plus(dh, in.dh);
      const float2 operand[1] = {both([&](Real z, Real dh) { return rnn_backward(acts, z, dh); }, in.gates[0], dh)};
      turn.hand_on(operand);
      turn.store(out, operand[0]);
      backward::sum_biases(turn, operand);
    }
  };
};
using Cell = Rnn;
