// Turns a router's choices from experts to slots by a table of the caller, and counts them in the
// same pass: the operator of eplb.torch.attach.
#pragma once

#include "absl/status/status.h"

#include "cuda/kernels/turn_body.h"

#ifdef EPLB_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace eplb::cuda {

// errors: as CheckChoices; InvalidArgument for one of slot_of_expert and slots without the other,
// and where neither they nor counters are given. No pointer is followed.
absl::Status CheckTurnArgs(const TurnArgs& args);

// Turns on the CPU, with the body that the GPU runs. errors: as CheckTurnArgs. cost: O(num_tokens *
// top_k). Threads: none; the arrays are the caller's.
absl::Status TurnOnHost(const TurnArgs& args);

#ifdef EPLB_WITH_CUDA
// Turns on the current device, in order with `stream`; asynchronous, safe under graph capture,
// launches nothing for zero tokens. errors: as CheckTurnArgs; Internal from CUDA.
absl::Status LaunchTurn(const TurnArgs& args, cudaStream_t stream);

// See LoadCopyKernels in copy.h.
absl::Status LoadTurnKernels();
#endif

}  // namespace eplb::cuda
