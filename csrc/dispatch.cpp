// The engines that this build contains, narrowest instruction set first.
#include "engine.h"

#define ZS_DECLARE_ENGINE(space)       \
  namespace space {                    \
  extern const zstate::Engine kEngine; \
  }
#if defined(ZS_X86_64)
ZS_DECLARE_ENGINE(zstate_v2)
ZS_DECLARE_ENGINE(zstate_avx2)
ZS_DECLARE_ENGINE(zstate_avx512)
#else
ZS_DECLARE_ENGINE(zstate_generic)
#endif

namespace zstate {

#if defined(ZS_X86_64)
const Engine* const kEngines[] = {&zstate_v2::kEngine, &zstate_avx2::kEngine, &zstate_avx512::kEngine,
                                  nullptr};
#else
const Engine* const kEngines[] = {&zstate_generic::kEngine, nullptr};
#endif

}  // namespace zstate
