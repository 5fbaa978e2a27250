// The engines that this build contains (ZS_HAS_... for each), narrowest instruction set first.
#include "engine.h"

#ifdef ZS_HAS_generic
namespace zstate_generic {
extern const zstate::Engine kEngine;
}
#endif
#ifdef ZS_HAS_v2
namespace zstate_v2 {
extern const zstate::Engine kEngine;
}
#endif
#ifdef ZS_HAS_avx2
namespace zstate_avx2 {
extern const zstate::Engine kEngine;
}
#endif
#ifdef ZS_HAS_avx512
namespace zstate_avx512 {
extern const zstate::Engine kEngine;
}
#endif
#ifdef ZS_HAS_avx512bf16
namespace zstate_avx512bf16 {
extern const zstate::Engine kEngine;
}
#endif

namespace zstate {

const Engine* const kEngines[] = {
#ifdef ZS_HAS_generic
    &zstate_generic::kEngine,
#endif
#ifdef ZS_HAS_v2
    &zstate_v2::kEngine,
#endif
#ifdef ZS_HAS_avx2
    &zstate_avx2::kEngine,
#endif
#ifdef ZS_HAS_avx512
    &zstate_avx512::kEngine,
#endif
#ifdef ZS_HAS_avx512bf16
    &zstate_avx512bf16::kEngine,
#endif
    nullptr};

}  // namespace zstate
