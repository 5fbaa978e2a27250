// What a block of wide.cu holds and where it lies in shared memory.
#pragma once

constexpr int kGroupsM = kWarpsN / 4, kGroupsK = kWarpsK;  // warp groups over the weight's columns, and over K
constexpr int kColumns = 64 * kGroupsM;                    // of the weight: 64 are one instruction's
// Backward, each block of a cluster multiplies one gate of the operand, for the units of all.
constexpr bool kSplits = kBackward && Phase<0>::ins > 1;
constexpr int kPeers = kSplits ? Phase<0>::ins : 1;  // blocks of a cluster
constexpr int kCopiers = 3;                          // warps that copy
constexpr int kSlots = kChunk;                       // stages in the ring
// A stage has kPieces pieces of 64 bytes of K for each warp group.
constexpr int kStageBytes = kRows * 64 * kPieces * kGroupsK;
constexpr int kTileStages = kPadded * kBytes / (64 * kPieces * kGroupsK);  // that a block needs of a tile's operand
static_assert(kTileStages * 64 * kPieces * kGroupsK == kPadded * kBytes, "K consists of whole stages");
constexpr int kHeldStages = kHeld[0], kStoredStages = kStored[0];
static_assert(kHeldStages + kStoredStages == kTileStages, "all of the weight is on the chip");
constexpr int kStageWeight = kPieces * 64 * 64;  // bytes of a warp group's weight for one stage

// Registers per thread: the copying warp group gives its own to those that compute.
constexpr int kCopierRegisters = 56;
static_assert(kThreads == 256 && 256 * kWorkerRegisters + 128 * kCopierRegisters <= 65536, "a chip's registers");

// Sums of a tile, one set per warp group over K. With this stride neither writes nor reads conflict in a bank.
constexpr int kSumStride = kColumns + 4;
constexpr int kSumSize = kRows * kSumStride;
constexpr int kReceivedStride = kPeers * kUnits + 4;
constexpr int kReceivedSize = kRows * kReceivedStride;

// Shared memory, in this order; wide_placements.py computes the same sizes.
constexpr int aligned(int bytes) { return (bytes + 1023) / 1024 * 1024; }
constexpr int kStateStride = kTiles * kRows * kUnits / 2;         // pairs
constexpr int kAtState = aligned((2 * kSlots + 2 * kTiles) * 8);  // behind the barriers
constexpr int kAtSums = kAtState + aligned(kStates * kStateStride * 8);
constexpr int kAtReceived = kAtSums + aligned(kGroupsK * kSumSize * 4);
constexpr int kAtRing = kAtReceived + aligned(kSplits ? kTiles * kReceivedSize * 4 : 0);
constexpr int kAtWeights = kAtRing + kSlots * kStageBytes;
constexpr int kWeightsEnd = kAtWeights + kGroupsM * kGroupsK * kStoredStages * kStageWeight;
static_assert(kWeightsEnd == kShared, "the placement and the kernel disagree about shared memory");
