// CUDA's error codes as statuses.
#ifndef EPLB_CUDA_STATUS_H_
#define EPLB_CUDA_STATUS_H_

#include <string_view>

#include "absl/status/status.h"
#include <cuda_runtime_api.h>

namespace eplb::cuda {

// `what` names the call. cudaSuccess: ok. Out of memory: ResourceExhausted. No usable device or
// driver: FailedPrecondition, the host path serves. Not ready yet: Unavailable. All else: Internal.
// The message has CUDA's name and text of the error: "cudaMalloc: cudaErrorMemoryAllocation (2):
// out of memory". An error is also cleared as CUDA's last one of this thread: it is reported here,
// and the next launch must not find it.
absl::Status ToStatus(cudaError_t error, std::string_view what);

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_STATUS_H_
