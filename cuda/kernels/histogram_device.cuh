// A block's histogram in shared memory, so that memory sees one atomic per block and expert in use
// instead of one per choice. Used in three phases with a barrier between: clear, add, merge.
#pragma once

#include <cstdint>

#include "cuda/kernels/count_body.h"

namespace eplb::cuda {

__device__ inline void AddToCell(const CountArgs& args, int32_t bin, uint32_t amount) {
  // Two's complement: adding to the bits as unsigned adds to the int64 counter.
  atomicAdd(reinterpret_cast<unsigned long long*>(CountCell(args, bin)),
            static_cast<unsigned long long>(amount));
}

// histogram: [num_experts + 1], the last for ids out of range.
__device__ inline void ClearHistogram(const CountArgs& args, uint32_t* histogram) {
  for (int32_t bin = threadIdx.x; bin <= args.num_experts; bin += blockDim.x) histogram[bin] = 0;
}

// Phase two. histogram: null, straight to the counters.
__device__ inline void AddQuad(const CountArgs& args, const BinQuad& quad_bins,
                               uint32_t* histogram) {
  for (const int32_t bin : quad_bins.bins) {
    if (bin == kNoBin) continue;
    if (histogram != nullptr) {
      atomicAdd(&histogram[bin], 1U);
    } else {
      AddToCell(args, bin, 1);
    }
  }
}

__device__ inline void MergeHistogram(const CountArgs& args, const uint32_t* histogram) {
  for (int32_t bin = threadIdx.x; bin <= args.num_experts; bin += blockDim.x) {
    if (histogram[bin] != 0) AddToCell(args, bin, histogram[bin]);
  }
}

}  // namespace eplb::cuda
