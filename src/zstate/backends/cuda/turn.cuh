// A cell's turn: one item in one phase of one step. What the cells' equations read, keep and hand on.
//
// A cell is a type (rnn.cuh, lstm.cuh, gru.cuh; cells.py lists them) with two parts, Forward and Backward, that hold
// what is its own. forward.cuh and backward.cuh hold what all cells do alike.
#pragma once

template <class HandOn>
struct Turn {
  const Arguments& a;
  const Item& item;
  const Constants& constants;
  float2* const state;  // values that a unit of a row keeps from phase to phase, kStates of them
  Sums& sums;
  const HandOn& hand_on;  // hand_on(operand) starts the exchange: everything that can wait comes after it

  ZS_DEVICE void keep(int k, float2 x) const {
    if (item.on) state[k * kStateStride + item.state] = x;
  }
  ZS_DEVICE float2 recall(int k) const {
    return item.on ? state[k * kStateStride + item.state] : make_float2(0.0f, 0.0f);
  }
  ZS_DEVICE void store(Stored* to, float2 x) const { store_pair(to, x, item.count); }
};
