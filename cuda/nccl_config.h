// What is asked of NCCL for a communicator, in the words of the version that is loaded.
#ifndef EPLB_CUDA_NCCL_CONFIG_H_
#define EPLB_CUDA_NCCL_CONFIG_H_

#include "absl/status/status.h"
#include <nccl.h>

#include "cuda/nccl_communicator.h"

namespace eplb::cuda {

// errors: InvalidArgument with the number that cannot be.
absl::Status CheckNcclOptions(const NcclOptions& options);

// A configuration as a program compiled for `version` would write it: the fields that came later
// are undefined and outside its size, so an older library reads nothing that it does not know.
// Never blocking, and nothing shared with other communicators, for an abort would reach them.
// Points into `options`, which outlives the communicator.
ncclConfig_t MakeNcclConfig(const NcclOptions& options, int version);

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_NCCL_CONFIG_H_
