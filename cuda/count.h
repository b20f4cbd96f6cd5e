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

// errors: as CheckChoices; InvalidArgument for a null counter where there are tokens.
absl::Status CheckCountArgs(const CountArgs& args);

// Adds the counts on the CPU, with the body that the GPU runs. errors: as CheckCountArgs.
// cost: O(num_tokens * top_k). threads: none; the arrays are the caller's.
absl::Status CountOnHost(const CountArgs& args);

// Grid of a kernel over router choices, LaunchCount's and LaunchRoute's.
struct CountGrid {
  int32_t blocks = 0;  // 0 when there are no choices
  int32_t threads = 0;
  int32_t shared_bytes = 0;  // a histogram per block; 0: too many experts, blocks add to memory, or
                             // no counters
};

// A thread has one quad of choices while multiprocessors are idle, since routing is on the way of
// the forward pass, where latency counts; at most two blocks a multiprocessor, which then stride.
// Blocks are few and large because each adds its histogram to memory.
CountGrid ChooseCountGrid(const CountArgs& args, int32_t num_multiprocessors);

#ifdef EPLB_WITH_CUDA
// Adds the counts on the current device, in order with `stream`; asynchronous, safe under graph
// capture, launches nothing for zero tokens. errors: as CheckCountArgs; Internal from CUDA.
absl::Status LaunchCount(const CountArgs& args, cudaStream_t stream);

// See LoadCopyKernels in copy.h: before the first launch beside other work, or in a graph capture.
absl::Status LoadCountKernels();
#endif

}  // namespace eplb::cuda
