// Packed layers for one instruction set, compiled like engine.cpp. What it does not add comes from its base.
#include "engine/prepared.h"

#if defined(ZS_BASE_ENGINE)
namespace ZS_BASE_ENGINE {
extern const zstate::Engine kEngine;
}  // namespace ZS_BASE_ENGINE
#endif

namespace ZS_NAMESPACE {

using zstate::Weights;

#if defined(ZS_BASE_ENGINE)
#if defined(ZS_MULTIPLIES_PAIRS)
constexpr Weights kOwn = Weights::kBfloat16;
#else
constexpr Weights kOwn = Weights::kInt8;
#endif
#endif

char* pack(const Problem& p, const ForwardArrays& arrays, Weights weights) {
#if defined(ZS_BASE_ENGINE)
  if (weights != kOwn) return ZS_BASE_ENGINE::kEngine.pack(p, arrays, weights);
#endif
  return with_weights(weights, [&]<class W>() { return pack_layer<W>(p, arrays); });
}

Call* ready(const Problem& p, const ForwardArrays& arrays, Weights weights, char* packed, int threads) {
#if defined(ZS_BASE_ENGINE)
  if (weights != kOwn) return ZS_BASE_ENGINE::kEngine.ready(p, arrays, weights, packed, threads);
#endif
  return with_weights(weights, [&]<class W>() { return ready_call<W>(p, arrays, packed, threads); });
}

}  // namespace ZS_NAMESPACE
