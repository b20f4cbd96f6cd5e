// Sends router choices to slots by the quotas of a batch: logical expert ids become physical ones,
// with as many for each slot as its quota has. Beside route.h, which draws by shares.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "cuda/kernels/quota_route_body.h"

#ifdef EPLB_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace eplb::cuda {

// Grid of LaunchQuotaRoute: a block for each chunk of choices.
struct QuotaRouteGrid {
  int32_t warps = 0;  // in a block; 0 if shared memory does not hold the tables
  int32_t shared_bytes = 0;
};
QuotaRouteGrid ChooseQuotaRouteGrid(int32_t num_experts, int32_t num_slots);

// errors: as CheckChoices; InvalidArgument for a null array where there are tokens, and for more
// experts and slots than shared memory holds, which 1,024 and 2,048 are not. No pointer is
// followed.
absl::Status CheckQuotaRouteArgs(const QuotaRouteArgs& args);

// Writes the slots on the CPU, with the body that the GPU runs: an expert's choices, in the order
// of token and of choice, fill its slots in the order of replica rank up to their own quotas.
// kNoSlot for padding, for ids outside 0..num_experts-1, and beyond the quotas. Needs no
// chunk_counts. errors: as CheckQuotaRouteArgs. cost: O(num_tokens * top_k * replicas). threads:
// none; the arrays are the caller's.
absl::Status QuotaRouteOnHost(const QuotaRouteArgs& args);

#ifdef EPLB_WITH_CUDA
// Writes the slots on the current device, in order with `stream` and after LaunchCount of the same
// choices there; asynchronous, safe under graph capture, launches nothing for zero tokens. errors:
// as CheckQuotaRouteArgs; InvalidArgument for null chunk_counts; Internal from CUDA.
absl::Status LaunchQuotaRoute(const QuotaRouteArgs& args, cudaStream_t stream);

// See LoadCopyKernels in copy.h: before the first launch beside other work, or in a graph capture.
absl::Status LoadQuotaRouteKernels();
#endif

}  // namespace eplb::cuda
