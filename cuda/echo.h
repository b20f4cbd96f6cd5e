// Plans the echo of all layers of a batch, or of some, in one launch: counts in, quotas out, with
// no host in between. placement/echo/echo_body.h has the method, docs/echo.md what it is for.
#ifndef EPLB_CUDA_ECHO_H_
#define EPLB_CUDA_ECHO_H_

#include <cstdint>

#include "absl/status/status.h"

#include "cuda/kernels/echo_layer_body.h"

#ifdef EPLB_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace eplb::cuda {

// errors: InvalidArgument, naming the number: fewer than 0 layers, 1 expert, GPU, slot a GPU or
// spare slot, domains that do not divide the GPUs, a tolerance outside 0..kEchoToleranceUnit, a
// layer that needs more than the 48 KiB which every device gives a block (256 GPUs with 5 homes and
// 2 spare slots fit), a null pointer where there are layers. No pointer is followed.
absl::Status CheckEchoArgs(const EchoArgs& args);

// Plans on the CPU, with the body that the GPU runs; equal to EchoPlanner::Plan. errors: as
// CheckEchoArgs. threads: none; the arrays are the caller's.
absl::Status EchoOnHost(const EchoArgs& args);

#ifdef EPLB_WITH_CUDA
// Plans on the current device, a warp a layer, in order with `stream`; asynchronous, safe under
// graph capture, launches nothing for zero layers. errors: as CheckEchoArgs; Internal from CUDA.
absl::Status LaunchEcho(const EchoArgs& args, cudaStream_t stream);

// As LoadCopyKernels in copy.h: before the first launch beside other work, or in a graph capture.
absl::Status LoadEchoKernels();
#endif

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_ECHO_H_
