// Waiting for a communicator with a deadline, and rows that tell their transfer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "cuda/nccl_communicator.h"

namespace eplb::cuda::testing {

inline constexpr absl::Duration kPatience = absl::Seconds(60);     // for what must happen
inline constexpr absl::Duration kPrompt = absl::Seconds(10);       // for what must not take long
inline constexpr absl::Duration kPause = absl::Microseconds(200);  // between two looks

using Bytes = std::vector<std::byte>;

// Until the call before has been taken over: DeadlineExceeded when it is not, or Poll's error.
absl::Status WaitUntilReady(NcclCommunicator& communicator, absl::Duration patience = kPatience);

// Bytes that belong to one transfer.
Bytes RowOf(int32_t from, int32_t to, int32_t number, size_t size);

}  // namespace eplb::cuda::testing
