// The warp of the GPU as a machine: of LaneTeam, and of routing by quota.
#pragma once

#include <cstdint>

namespace eplb::cuda {

// REQUIRES: all 32 lanes run.
struct Warp {
  static constexpr int32_t kWidth = 32;
  static constexpr uint32_t kAll = 0xffffffff;

  __device__ static int32_t lane() { return static_cast<int32_t>(threadIdx.x % 32); }
  __device__ static void Sync() { __syncwarp(); }
  __device__ static uint32_t Ballot(bool test) { return __ballot_sync(kAll, test); }
  // REQUIRES: bits is not 0.
  __device__ static int32_t LowestBit(uint32_t bits) {
    return __ffs(static_cast<int32_t>(bits)) - 1;
  }
  __device__ static int32_t Shuffle(int32_t value, int32_t source) {
    return __shfl_sync(kAll, value, source);
  }
  __device__ static int64_t Shuffle(int64_t value, int32_t source) {
    return __shfl_sync(kAll, static_cast<long long>(value), source);
  }
  __device__ static int64_t ShuffleXor(int64_t value, int32_t distance) {
    return __shfl_xor_sync(kAll, static_cast<long long>(value), distance);
  }
  __device__ static int32_t Sum(int32_t value) { return __reduce_add_sync(kAll, value); }
  __device__ static int32_t Max(int32_t value) { return __reduce_max_sync(kAll, value); }
  __device__ static uint32_t Or(uint32_t value) { return __reduce_or_sync(kAll, value); }
  __device__ static void AddTo(int32_t& sum, int32_t value) { atomicAdd(&sum, value); }
  __device__ static void AddTo(int64_t& sum, int64_t value) {
    // Two's complement: adding to the bits as unsigned adds to the int64.
    atomicAdd(reinterpret_cast<unsigned long long*>(&sum), static_cast<unsigned long long>(value));
  }
};

}  // namespace eplb::cuda
