// A cell's turn: one item in one phase of one step, with what the cell's equations read, keep and hand on.
//
// A cell is text that printing.py writes after this one: its Constants, its Sums, and its Pass, with what a step loads
// (Loaded; as numbers, Inputs; fetch, fetch_ahead), what comes before the first product (begin) and what follows each
// (consume).
#pragma once

struct Constants;  // what stays the same for all rows and steps
struct Sums;

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
  // Adds to the k-th sum over time. Outside the batch and the head there are zeros, whose equations may give anything,
  // and a thread without an item reads another's row.
  ZS_DEVICE void add(int k, float2 x) const {
    if (item.count) sums.values[k].add(x);
  }
  ZS_DEVICE void store(Stored* to, float2 x) const { store_pair(to, x, item.count); }
};
// The turn of a thread's p-th item; `carried` is what the thread carries through the sequence.
template <class Carried, class HandOn>
ZS_DEVICE Turn<HandOn> turn_of(const Block& block, const Item& item, Carried& carried, int p, const HandOn& hand_on) {
  return {block.a, item, carried.constants[p], block.state(), carried.sums[p], hand_on};
}

// An item's place in a step of [T,N,D,Count,H].
template <int Count>
ZS_DEVICE i64 products_at(const Arguments& a, const Item& w, i64 t) {
  return Count == kGates ? gates_at(a, w, t) : (t * a.step + w.pair - w.column) * Count + w.column;
}
