// The counters of a block: a histogram in shared memory, so that memory sees one atomic per block
// and expert in use instead of one per choice. Used in three phases with a barrier between: clear,
// add, merge. Where none fits, choices are added to memory.
#pragma once

#include <cstdint>

#include "cuda/kernels/count_body.h"

namespace eplb::cuda {

__device__ inline void AddToCell(const CountArgs& args, int32_t bin, uint32_t amount) {
  // Two's complement: adding to the bits as unsigned adds to the int64 counter.
  atomicAdd(reinterpret_cast<unsigned long long*>(CountCell(args, bin)),
            static_cast<unsigned long long>(amount));
}

// histogram: [NumBins]
__device__ inline void ClearHistogram(const CountArgs& args, uint32_t* histogram) {
  for (int32_t bin = threadIdx.x; bin < NumBins(args); bin += blockDim.x) histogram[bin] = 0;
}

// fits: there is a histogram.
__device__ inline void AddBin(const CountArgs& args, int32_t bin, uint32_t* histogram, bool fits) {
  if (fits) {
    atomicAdd(&histogram[bin], 1U);
  } else if (bin <= OutOfRangeBin(args)) {
    AddToCell(args, bin, 1);
  }
}

// The block counted the chunk of its index.
__device__ inline void MergeHistogram(const CountArgs& args, const uint32_t* histogram) {
  for (int32_t bin = threadIdx.x; bin <= OutOfRangeBin(args); bin += blockDim.x) {
    const uint32_t count = histogram[bin];
    if (count != 0) AddToCell(args, bin, count);
    if (args.chunk_counts != nullptr && bin < args.num_experts) {
      args.chunk_counts[int64_t{blockIdx.x} * args.num_experts + bin] = static_cast<int32_t>(count);
    }
  }
}

}  // namespace eplb::cuda
