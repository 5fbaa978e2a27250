// Reads CPUID on x86-64, and asks the system on ARM, where a program cannot.
#include "runtime/cpu.h"

#include <cstddef>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace zstate {

#if defined(__x86_64__)

namespace {

struct Leaf {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};
Leaf leaf(unsigned number, unsigned part) {
  Leaf found;
  __get_cpuid_count(number, part, &found.eax, &found.ebx, &found.ecx, &found.edx);
  return found;
}
bool all(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }
constexpr unsigned bit(int place) { return 1u << place; }

// Which registers the system saves.
unsigned saved_registers() {
  if (!all(leaf(1, 0).ecx, bit(27))) return 0;  // OSXSAVE
  unsigned low, high;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

bool cpu_has(Feature feature) {
  const Leaf basic = leaf(1, 0), extended = leaf(7, 0);
  switch (feature) {
    case Feature::kV2:  // SSE4.2 and POPCNT
      return all(basic.ecx, bit(20) | bit(23));
    case Feature::kAvx2:  // FMA, F16C, AVX2, BMI2
      return all(basic.ecx, bit(12) | bit(29)) && all(extended.ebx, bit(5) | bit(8)) &&
             all(saved_registers(), 0x6);
    case Feature::kAvx512:  // F, DQ, CD, BW, VL
      return cpu_has(Feature::kAvx2) && all(extended.ebx, bit(16) | bit(17) | bit(28) | bit(30) | bit(31)) &&
             all(saved_registers(), 0xe6);
    case Feature::kAvx2Vnni:
      return cpu_has(Feature::kAvx2) && all(leaf(7, 1).eax, bit(4));
    case Feature::kAvx512Vnni:
      return cpu_has(Feature::kAvx512) && all(extended.ecx, bit(11));
    case Feature::kAvx512Bf16:  // whose machines have VNNI too
      return cpu_has(Feature::kAvx512Vnni) && all(leaf(7, 1).eax, bit(5));
    default:
      return false;
  }
}

#elif defined(__aarch64__)

namespace {

enum class Extension { kDot, kI8mm, kBf16 };

bool system_has([[maybe_unused]] Extension extension) {
#if defined(__linux__)
  switch (extension) {
    case Extension::kDot:
      return getauxval(AT_HWCAP) >> 20 & 1;  // HWCAP_ASIMDDP
    case Extension::kI8mm:
      return getauxval(AT_HWCAP2) >> 13 & 1;  // HWCAP2_I8MM
    default:
      return getauxval(AT_HWCAP2) >> 14 & 1;  // HWCAP2_BF16
  }
#elif defined(__APPLE__)
  const char* const names[] = {"hw.optional.arm.FEAT_DotProd", "hw.optional.arm.FEAT_I8MM",
                               "hw.optional.arm.FEAT_BF16"};
  int has = 0;
  std::size_t size = sizeof has;
  return sysctlbyname(names[static_cast<int>(extension)], &has, &size, nullptr, 0) == 0 && has;
#else
  return false;
#endif
}

}  // namespace

bool cpu_has(Feature feature) {
  switch (feature) {
    case Feature::kNeonDot:
      return system_has(Extension::kDot);
    case Feature::kNeonI8mm:
      return cpu_has(Feature::kNeonDot) && system_has(Extension::kI8mm);
    case Feature::kNeonBf16:  // whose machines have I8MM too
      return cpu_has(Feature::kNeonI8mm) && system_has(Extension::kBf16);
    default:
      return false;
  }
}

#else

bool cpu_has(Feature) { return false; }

#endif

}  // namespace zstate
