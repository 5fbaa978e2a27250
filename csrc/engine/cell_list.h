// The cells that this engine is compiled for: one line for each, and the choice between them.
#pragma once

#include "engine/gru.h"
#include "engine/lstm.h"
#include "engine/rnn.h"

namespace ZS_NAMESPACE {

// The usual activations are compiled in where speed matters most; elsewhere they would only lengthen the
// build.
template <class S>
inline constexpr bool kSpecialised =
    sizeof(S) == sizeof(float) || !Operand<typename Elements<S>::Product>::kPlain;

template <class Acts>
bool has_activations(const Problem& p) {
  for (int k = 0; k < zstate::info(p.cell).activations; ++k)
    if (p.activations[k] != Acts{}.kind(k)) return false;
  return true;
}

// Calls run.template operator()<Cell>(activations).
template <class S, class Cell, class Run>
void with_activations(const Problem& p, const Run& run) {
  if constexpr (Cell::kHasUsual && kSpecialised<S>)
    if (has_activations<typename Cell::Usual>(p)) {
      mark(Path::usual_activations);
      return run.template operator()<Cell>(typename Cell::Usual{});
    }
  mark(Path::any_activations);
  AnyActivations any;
  for (int k = 0; k < zstate::kMostActivations; ++k) any.kinds[k] = p.activations[k];
  run.template operator()<Cell>(any);
}
template <class S, class Run>
void with_cell(const Problem& p, const Run& run) {
  switch (p.cell) {
    case zstate::Cell::kRnn:
      return with_activations<S, Rnn>(p, run);
    case zstate::Cell::kLstm:
      return p.peephole_on_new_cell ? with_activations<S, Lstm<true>>(p, run)
                                    : with_activations<S, Lstm<false>>(p, run);
    case zstate::Cell::kGru:
      return p.reset_after ? with_activations<S, Gru<true>>(p, run) : with_activations<S, Gru<false>>(p, run);
  }
}

}  // namespace ZS_NAMESPACE
