// A block's histogram in shared memory, so that memory sees one atomic per block and expert in use
// instead of one per choice. Used in three phases with a barrier between: clear, add, merge.
#ifndef EPLB_CUDA_KERNELS_HISTOGRAM_DEVICE_CUH_
#define EPLB_CUDA_KERNELS_HISTOGRAM_DEVICE_CUH_

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

__device__ inline void MergeHistogram(const CountArgs& args, const uint32_t* histogram) {
  for (int32_t bin = threadIdx.x; bin <= args.num_experts; bin += blockDim.x) {
    if (histogram[bin] != 0) AddToCell(args, bin, histogram[bin]);
  }
}

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_KERNELS_HISTOGRAM_DEVICE_CUH_
