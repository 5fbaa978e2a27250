// The engines of this build (ZS_HAS_... for each) and the choice between them.
#include "runtime/engines.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

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
namespace {

// Narrowest instruction set first, ended by null.
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

// The engine of that name, or the widest one for an empty name; `chooser` begins the message where there is
// none.
const Engine* find_engine(const std::string& name, const char* chooser) {
  const Engine* best = nullptr;
  for (const Engine* const* e = kEngines; *e; ++e)
    if ((*e)->supported() && (name.empty() || name == (*e)->name)) best = *e;
  if (best) return best;
  std::string known;
  for (const std::string& isa : supported_isas()) known += " " + isa;
  throw std::runtime_error(chooser + name + ": this machine and build support" + known);
}

std::atomic<const Engine*> g_engine{nullptr};

}  // namespace

const Engine& engine() {
  const Engine* chosen = g_engine.load(std::memory_order_acquire);
  if (!chosen) {
    const char* forced = std::getenv("ZSTATE_ISA");
    chosen = find_engine(forced ? forced : "", "ZSTATE_ISA=");
    g_engine.store(chosen, std::memory_order_release);
  }
  return *chosen;
}

void use_isa(const std::string& name) {
  g_engine.store(find_engine(name, "use_isa: "), std::memory_order_release);
}

std::vector<std::string> supported_isas() {
  std::vector<std::string> names;
  for (const Engine* const* e = kEngines; *e; ++e)
    if ((*e)->supported()) names.push_back((*e)->name);
  return names;
}

}  // namespace zstate
