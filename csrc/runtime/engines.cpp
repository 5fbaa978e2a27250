// The engines of this build (ZS_ENGINES: their namespaces) and the choice between them.
#include "runtime/engines.h"

#include "runtime/build.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

#define ZS_DECLARE(isa)                \
  namespace isa {                      \
  extern const zstate::Engine kEngine; \
  }
ZS_ENGINES(ZS_DECLARE)
#undef ZS_DECLARE

namespace zstate {
namespace {

// Narrowest instruction set first, ended by null.
const Engine* const kEngines[] = {
#define ZS_ADDRESS(isa) &isa::kEngine,
    ZS_ENGINES(ZS_ADDRESS)
#undef ZS_ADDRESS
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
