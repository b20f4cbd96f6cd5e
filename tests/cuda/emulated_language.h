// Small kernels that show what the CUDA emulator makes of CUDA's language and of races.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

namespace eplb::cuda::testing {

// [32] each.
struct LaneResults {
  int32_t sums[32];
  int32_t least[32];
  uint32_t largest[32];
  uint32_t bits_of_all[32];
  uint32_t bits_of_any[32];
  uint32_t odd_bits[32];
  int32_t shifted[32];
  int32_t third[32];
};
// The lanes of each half of a warp reduce and exchange values[lane].
void LaunchLanes(const int32_t* values, LaneResults* results);

// Two warps in each of two blocks work on `memory`, 64 zeros, in one of these ways.
enum class Sharing {
  kShuffleThenRead,       // a race: a lane reads what its neighbour wrote before a shuffle
  kSyncThenRead,          // .. before __syncwarp
  kSyncOfHalvesThenRead,  // a race: .. of the other half of the warp
  kBallotThenWrite,       // a race: a lane writes what its neighbour read before a ballot
  kBytes,                 // lanes write bytes of one word
  kWarpsWithoutBarrier,   // a race: a warp reads what another one wrote
  kWarpsWithBarrier,
  kAtomics,    // all threads add to a counter
  kPlainAdds,  // a race
  kPlainRead,  // a race: of a counter to which others add
  kOneValue,   // all threads write the same value
  kTwoValues,  // a race: blocks write their number
  kAcquired,   // a block reads what the other one wrote before a signal: release and acquire
  kRelaxed,    // a race: .. by relaxed accesses
  kFenced,     // .. by volatile accesses and fences
  kUnfenced,   // a race: .. without fences
};
void LaunchSharing(Sharing sharing, int32_t* memory);

// How a kernel adds 1 to each of 64 numbers.
enum class Wait { kFirst, kLater, kNever };
// programmatic: the launch may overlap the one before it.
cudaError_t LaunchAdd(Wait wait, bool programmatic, int32_t* numbers, cudaStream_t stream);

// Copies 8 floats by PTX's loads and stores, with nanoseconds that grow at `times`.
void LaunchPtx(const float* from, float* to, uint64_t* times);

// Asks the host by words[0] and writes its answer, words[1], to results[0..63]. The words are in
// memory that both share.
void LaunchAsk(uint32_t* words, uint32_t* results);

}  // namespace eplb::cuda::testing
