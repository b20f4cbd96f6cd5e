// Ends NCCL communicators, for which NCCL itself has no bound.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "cuda/nccl_communicator.h"

namespace eplb {

// Aborts on a thread of its own, with `device` current. OK: none of the communicator's writes can
// still land. errors: Internal when NCCL failed or has not ended it within `timeout`; then it is
// left to itself for ever. A process that exits waits a second for such threads; one that comes
// back from NCCL later than that stops there, for what it would touch may be gone. threads: safe.
absl::Status AbortWithin(std::unique_ptr<cuda::NcclCommunicator> communicator,
                         std::optional<int32_t> device, absl::Duration timeout);

}  // namespace eplb
