// What a block of row.cu holds and where it lies in shared memory.
#pragma once

constexpr int kLanes = kChunk;                // lanes that share the sums of a unit
constexpr int kQuads = kPadded / 4 / kLanes;  // groups of four along K that a lane multiplies for each gate
constexpr int kAhead = 4;                     // how many steps ahead inputs are loaded: the latency of memory
static_assert(kQuads * 4 * kLanes == kPadded && kAhead % 2 == 0, "whole vectors; operands have two places in turn");

// What a unit keeps from step to step is in registers; shared memory has only operands.
constexpr int kStateStride = 1, kAtState = 0, kAtSums = 0;
constexpr int kOperand = kPack * kPadded * Before<kPhases>::ins;  // floats
static_assert(2 * kOperand * 4 == kShared, "the placement and the kernel disagree about shared memory");
