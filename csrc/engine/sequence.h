// Where the values of a batch of sequences are stored: steps in a direction's processing order, sequences of
// equal or different lengths.
#pragma once

#include "engine/engine.h"
#include "engine/packing.h"

namespace ZS_NAMESPACE {

using zstate::Array;
using zstate::Problem;

// The rows of a [T,N,...] array in processing order: step s, batch row n. Where sequences have different
// lengths, `starts` has the first row of step 0 and `step`, 1 or -1, leads to the next one's.
template <class S>
struct Rows {
  S* data;
  i64 step, row;
  const i64* starts;
  explicit operator bool() const { return data != nullptr; }
  ZS_DEVICE S* at(i64 s, i64 n) const {
    const i64 first = s * step;
    return data + (starts ? starts[first] * row : first) + n * row;
  }
};

template <class S>
struct MaskRows : Rows<const S> {
  bool splat;  // one value for all hidden units
  ZS_DEVICE Vec<RealOf<S>> load(i64 s, i64 n, i64 u, int lanes) const {
    const S* p = this->at(s, n);
    if (splat) return broadcast<RealOf<S>>(Io<S>::load_n(p, 1)[0]);
    return Io<S>::load_n(p + u, lanes);
  }
};

// Whether an array's steps follow the input or a direction's processing order.
enum class Order { kInput, kProcessing };
inline bool runs_backwards(const Problem& p, int d, Order order) {
  return p.D == 2 ? d == 1 : order == Order::kInput && p.reverse;
}
// How many sequences processing step s of a direction has.
inline i64 batch_at(const Problem& p, int d, i64 s) {
  return p.batch(runs_backwards(p, d, Order::kInput) ? p.T - 1 - s : s);
}
// Whether sequence n, which a direction reads at step s, has not begun (or has ended) at another step.
// Written so that equal lengths cost nothing.
ZS_DEVICE bool absent(const Problem& p, int d, i64 s, i64 n) {
  return s < 0 || s >= p.T || (p.starts && n >= batch_at(p, d, s));
}
// Rows without gaps, one for each step of each sequence.
template <class S>
Rows<S> dense_rows(const Problem& p, S* data, int d, i64 row) {
  if (!p.starts) return {data, p.N * row, row, nullptr};
  const bool backwards = runs_backwards(p, d, Order::kInput);
  return {data, backwards ? -1 : 1, row, p.starts + (backwards ? p.T - 1 : 0)};
}

// The first row of processing step s among those.
inline i64 dense_row(const Problem& p, int d, i64 s) {
  return p.starts[runs_backwards(p, d, Order::kInput) ? p.T - 1 - s : s];
}

// A row of the products over all steps: the numbers follow processing order, or the arrays' where lengths
// differ.
struct Place {
  i64 s, n;
};
ZS_DEVICE Place place_of(const Problem& p, int d, i64 row) {
  if (!p.starts) return {row / p.N, row % p.N};
  const i64 t = p.step_of[row];
  return {runs_backwards(p, d, Order::kInput) ? p.T - 1 - t : t, row - p.starts[t]};
}
// The rows of processing steps [s, s + steps).
inline Range rows_between(const Problem& p, int d, i64 s, i64 steps) {
  if (!p.starts) return {s * p.N, (s + steps) * p.N};
  const i64 t = runs_backwards(p, d, Order::kInput) ? p.T - s - steps : s;
  return {p.starts[t], p.starts[t + steps]};
}
// `width`: how far along the last axis the second direction lies.
template <class S>
Rows<S> rows_of(const Problem& p, const Array& a, int d, i64 width, Order order) {
  Rows<S> rows{};
  if (!a) return rows;
  rows.data = static_cast<S*>(a.data) + d * width;
  if (p.starts && a.rank == 2) return dense_rows(p, rows.data, d, a.strides[0]);
  rows.step = a.strides[0];
  rows.row = a.strides[1];
  if (runs_backwards(p, d, order)) {
    rows.data += (p.T - 1) * rows.step;
    rows.step = -rows.step;
  }
  return rows;
}
// An initial or final state [N, D·H].
template <class S>
Rows<S> state_rows(const Array& a, int d, i64 width) {
  Rows<S> rows{};
  if (!a) return rows;
  rows.data = static_cast<S*>(a.data) + d * width;
  rows.row = a.strides[0];
  return rows;
}
// The first step at which a direction reads sequence n.
inline i64 first_step(const Problem& p, int d, i64 n) {
  i64 s = 0;
  while (s + 1 < p.T && absent(p, d, s, n)) ++s;
  return s;
}
// The same rows of values that are stored as what they are computed in.
template <class R, class S>
Rows<R> as_rows(const Rows<S>& rows) {
  return {reinterpret_cast<R*>(rows.data), rows.step, rows.row, rows.starts};
}
template <class S>
MaskRows<S> mask_rows(const Problem& p, const Array& a, int d) {
  MaskRows<S> mask{};
  if (!a) return mask;
  static_cast<Rows<const S>&>(mask) = rows_of<const S>(p, a, d, p.units() * a.strides[2], Order::kInput);
  mask.splat = a.strides[2] == 0;
  return mask;
}

// Resets [T, N, D]: one value for all units.
template <class S>
MaskRows<S> reset_rows(const Problem& p, const Array& a, int d) {
  MaskRows<S> resets{};
  if (!a) return resets;
  static_cast<Rows<const S>&>(resets) = rows_of<const S>(p, a, d, 1, Order::kInput);
  resets.splat = true;
  return resets;
}

}  // namespace ZS_NAMESPACE
