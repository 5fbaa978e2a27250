// What this CPU can run, and its operating system lets it run.
#pragma once

namespace zstate {

enum class Feature {
  kV2,
  kAvx2,
  kAvx2Vnni,
  kAvx512,
  kAvx512Vnni,
  kAvx512Bf16,
  kNeonDot,
  kNeonI8mm,
  kNeonBf16
};

bool cpu_has(Feature feature);

}  // namespace zstate
