// Layers whose weights are packed once: the packing, and calls that are set up once and run many times.
#pragma once

#include <new>

#include "engine/forward.h"

namespace ZS_NAMESPACE {

using zstate::Call;

// A layer's packed weights, as laid out in their block.
template <class W>
struct PackedLayer {
  Forward<float, W>& op;
  int* not_finite = nullptr;  // whether R has other than finite values

  i64 lay_out(char* block) {
    Arena arena(block);
    not_finite = arena.take<int>(1);
    op.lay_out_weights(arena);
    return arena.used();
  }
  void run(const Team& team) { op.pack_weights(team); }
};

template <class W>
char* pack_layer(const Problem& p, const ForwardArrays& arrays) {
  Forward<float, W> op(p, arrays);
  PackedLayer<W> layer{op};
  const i64 bytes = layer.lay_out(nullptr);
  char* block = static_cast<char*>(zstate::take_block(static_cast<std::size_t>(bytes)));
  layer.lay_out(block);
  zstate::run_team(zstate::get_num_threads(), run_member<PackedLayer<W>>, &layer);
  *layer.not_finite = op.weights_not_finite;
  return block;
}

template <class W>
struct LayerCall : Call {
  Problem problem;
  ForwardArrays arrays;
  Forward<float, W> op;
  LayerCall(const Problem& p, const ForwardArrays& given) : problem(p), arrays(given), op(problem, arrays) {}
};

// In one block with its scratch memory.
template <class W>
Call* ready_call(const Problem& p, const ForwardArrays& given, char* packed, int threads) {
  using Layer = LayerCall<W>;
  const i64 own = round_up(static_cast<i64>(sizeof(Layer)), 128);
  i64 bytes = 0;
  {
    Forward<float, W> measured(p, given);
    measured.threads = threads;
    Arena arena(nullptr);
    measured.lay_out(arena);
    bytes = arena.used();
  }
  char* block = static_cast<char*>(zstate::take_block(static_cast<std::size_t>(own + bytes)));
  Layer* call = new (block) Layer(p, given);
  PackedLayer<W> layer{call->op};
  layer.lay_out(packed);
  call->op.weights_not_finite = *layer.not_finite;
  call->op.threads = call->threads = threads;
  Arena arena(block + own);
  call->op.lay_out(arena);
  call->work = call->op.work(), call->shared = call->op.shared_work();
  call->run = [](Call* self, const Team& team) { static_cast<Layer*>(self)->op.run(team); };
  call->end = [](Call* self) { zstate::give_block(self); };
  return call;
}

// Calls run.template operator()<W>(), where W is the type these weights are packed as.
template <class Run>
auto with_weights([[maybe_unused]] zstate::Weights weights, const Run& run) {
#if defined(ZS_BASE_ENGINE) && defined(ZS_MULTIPLIES_PAIRS)
  return run.template operator()<Bfloat16Weights>();
#elif defined(ZS_BASE_ENGINE)
  return run.template operator()<Int8Weights>();
#else
  switch (weights) {
    case zstate::Weights::kFloat32:
      return run.template operator()<float>();
    case zstate::Weights::kBfloat16:
      return run.template operator()<Bfloat16Weights>();
    default:
      return run.template operator()<Int8Weights>();
  }
#endif
}

}  // namespace ZS_NAMESPACE
