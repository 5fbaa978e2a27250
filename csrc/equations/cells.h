// The equations of the three cells and their derivatives, for one element (or one vector of elements).
//
// Everything but the matrix products is here, once, for every backend written in C++ or CUDA. `a`
// are pre-activations, `d...` gradients; gates are in canonical order: LSTM i,f,z,o and GRU z,r,o.
#pragma once

#include "activations.h"

namespace ZS_NAMESPACE {

// Single gate: h = activation(z). The training state is z itself, so the derivative evaluates the activation
// again.
template <class Acts, class V>
ZS_DEVICE V rnn_forward(const Acts& acts, V z) {
  return activate(acts.kind(0), z);
}
template <class Acts, class V>
ZS_DEVICE V rnn_backward(const Acts& acts, V z, V dh) {
  return dh * d_activate(acts.kind(0), activate(acts.kind(0), z));
}

// LSTM: c = f·c_prev + i·z, h = o·g(c).
template <class V>
struct LstmState {
  V gate[4];
  V c, h;
};
template <class Acts, class V>
ZS_DEVICE V lstm_output(const Acts& acts, V o, V c) {
  return o * activate(acts.kind(4), c);
}
// new_cell_peephole: o's, where it looks at c rather than at c_prev; a[3] is without it then.
template <class Acts, class V>
ZS_DEVICE LstmState<V> lstm_forward(const Acts& acts, const V a[4], V c_prev,
                                    const V* new_cell_peephole = nullptr) {
  LstmState<V> next;
  for (int k = 0; k < (new_cell_peephole ? 3 : 4); ++k) next.gate[k] = activate(acts.kind(k), a[k]);
  next.c = next.gate[1] * c_prev + next.gate[0] * next.gate[2];
  if (new_cell_peephole) next.gate[3] = activate(acts.kind(3), a[3] + *new_cell_peephole * next.c);
  next.h = lstm_output(acts, next.gate[3], next.c);
  return next;
}

template <class V>
struct LstmGradient {
  V da[4];
  V dc_prev;
};
// dc is the gradient that reaches c[t] from later steps and from outside, without the path through h[t].
template <class Acts, class V>
ZS_DEVICE LstmGradient<V> lstm_backward(const Acts& acts, const V gate[4], V c, V c_prev, V dh, V dc,
                                        const V* new_cell_peephole = nullptr) {
  const V g = activate(acts.kind(4), c);
  V dc_all = dc + dh * gate[3] * d_activate(acts.kind(4), g);
  if (new_cell_peephole) dc_all = dc_all + dh * g * d_activate(acts.kind(3), gate[3]) * *new_cell_peephole;
  const V dgate[4] = {dc_all * gate[2], dc_all * c_prev, dc_all * gate[0], dh * g};
  LstmGradient<V> out;
  for (int k = 0; k < 4; ++k) out.da[k] = dgate[k] * d_activate(acts.kind(k), gate[k]);
  out.dc_prev = dc_all * gate[1];
  return out;
}

// GRU: h = w·h_prev + (1-w)·o, where w is z, or 1-z with flipZ.
template <class V>
ZS_DEVICE V gru_blend(bool flip_z, V z, V h_prev, V o) {
  const V rest = Math<V>::splat(1.0) - z;
  return flip_z ? rest * h_prev + z * o : z * h_prev + rest * o;
}

template <class V>
struct GruGradient {
  V da_z, da_o;
  V dh_prev;  // through the blend only
};
template <class Acts, class V>
ZS_DEVICE GruGradient<V> gru_blend_backward(const Acts& acts, bool flip_z, V z, V o, V h_prev, V dh) {
  const V rest = Math<V>::splat(1.0) - z;
  const V dz = flip_z ? dh * (o - h_prev) : dh * (h_prev - o);
  const V d_o = flip_z ? dh * z : dh * rest;
  GruGradient<V> out;
  out.da_z = dz * d_activate(acts.kind(0), z);
  out.da_o = d_o * d_activate(acts.kind(2), o);
  out.dh_prev = flip_z ? dh * rest : dh * z;
  return out;
}

// Reset after the product: o = f(x_o + recurrent·r), recurrent = (h_prev·m)Ro^T + b2.
template <class Acts, class V>
ZS_DEVICE V gru_candidate_after(const Acts& acts, V x_o, V recurrent, V r) {
  return activate(acts.kind(2), x_o + recurrent * r);
}
template <class Acts, class V>
ZS_DEVICE V gru_reset_gradient(const Acts& acts, V r, V dr) {
  return dr * d_activate(acts.kind(1), r);
}

}  // namespace ZS_NAMESPACE
