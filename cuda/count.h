// Counts tokens per expert from the router's top-k ids: the load that ranks report.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

#include "cuda/kernels/count_body.h"

#ifdef EPLB_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace eplb::cuda {

// Looks at the choices, not at the counters. errors: InvalidArgument, naming the number: num_tokens
// < 0, top_k or num_experts < 1, num_tokens * top_k above 2^31, null ids where there are tokens. No
// pointer is followed.
absl::Status CheckChoices(const CountArgs& args);

// errors: as CheckChoices; InvalidArgument for a null counter where there are tokens, and for
// chunk_counts of so many experts that HistogramBytes is 0.
absl::Status CheckCountArgs(const CountArgs& args);

// Adds the counts on the CPU, with the body that the GPU runs. errors: as CheckCountArgs.
// cost: O(num_tokens * top_k). threads: none; the arrays are the caller's.
absl::Status CountOnHost(const CountArgs& args);

// Returns the grid of a kernel over router choices, such as LaunchCount's and LaunchRoute's.
ChoiceGrid GridOfChoices(const CountArgs& args);

// Returns the bytes of chunk_counts.
int64_t ChunkCountsBytes(const CountArgs& args);

// Bytes of shared memory that a block gets on every device without asking for more.
inline constexpr int32_t kMaxSharedBytes = 48 * 1024;

// Returns the bytes of a block's histogram; 0 if a block of some device has not that much shared
// memory.
int32_t HistogramBytes(int32_t num_experts);

#ifdef EPLB_WITH_CUDA
// Adds the counts on the current device, in order with `stream`; asynchronous, safe under graph
// capture, launches nothing for zero tokens. errors: as CheckCountArgs; Internal from CUDA.
absl::Status LaunchCount(const CountArgs& args, cudaStream_t stream);

// See LoadCopyKernels in copy.h: before the first launch beside other work, or in a graph capture.
absl::Status LoadCountKernels();
#endif

}  // namespace eplb::cuda
