// What every entry into the engine checks about a problem before computing it.
#pragma once

#include "engine/engine.h"

namespace zstate {

// Grows with every change of what Python passes to the module or to the XLA handlers.
inline constexpr int kInterface = 18;

// Identifies the sources that a library was built from: two libraries of one build have the same.
extern const char* const kStamp;

// Throw std::invalid_argument with a message, or std::bad_alloc for sizes that no memory could hold.
void check(const Problem& problem);

}  // namespace zstate
