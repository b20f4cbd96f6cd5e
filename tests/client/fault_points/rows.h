// The transports under test, between processes and in host memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "client/rows/control/control_channel.h"
#include "client/rows/transport.h"
#include "tests/client/fault_points/rank_process.h"

namespace eplb {

// Collective. That of nccl is over the stand-in for libnccl.
absl::StatusOr<std::unique_ptr<Transport>> MakeRows(const JobSpec& spec, int32_t rank,
                                                    const std::string& secret,
                                                    const AllGather& all_gather);

}  // namespace eplb
