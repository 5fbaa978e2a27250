// The engines of this build, one per instruction set, and which of them calls use.
#pragma once

#include <string>
#include <vector>

#include "engine/engine.h"

namespace zstate {

// The engine that calls use: ZSTATE_ISA's, or the widest that this machine runs. Throws std::runtime_error if
// ZSTATE_ISA names one that this machine cannot run.
const Engine& engine();

// For tests: the engine that calls use from now on.
void use_isa(const std::string& name);

std::vector<std::string> supported_isas();  // narrowest first

}  // namespace zstate
