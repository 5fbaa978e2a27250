// What CMake wrote down, for show_config().
#include "python/build_info.h"

#include "runtime/build.h"

namespace nb = nanobind;

namespace zstate {

void bind_build_info(nb::module_& m) {
  m.def("build_info", [] {
    nb::dict info;
    info["compiler"] = ZS_BUILD_COMPILER;
    info["flags of the engines"] = ZS_BUILD_FLAGS;
    info["target"] = ZS_BUILD_TARGET;
    info["instruction sets built"] = ZS_BUILD_ISAS;
    info["options"] = ZS_BUILD_OPTIONS;
    return info;
  });
}

}  // namespace zstate
