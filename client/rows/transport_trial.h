// Tries a transport before training depends on it.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "client/rows/transport.h"
#include "cuda/row_queue.h"
#include "placement/ids.h"

namespace eplb {

// Posts no rows as post 0, on all ranks together, so that the state that the ranks share exists
// before a step waits for it. errors: see Post and Poll.
absl::Status BringUp(Transport& transport, absl::Time deadline);

struct TrialOptions {
  RankId self;
  std::vector<RankId> ranks;  // all ranks, rising, including self
  absl::Time deadline;
};
// Brings the transport up and sends a row of at most 64 KiB from every rank to every other one,
// because only a transfer shows that bytes arrive. queue: for the memory of the rows. errors: see
// BringUp; ResourceExhausted.
absl::Status TryPairs(Transport& transport, cuda::RowQueue& queue, const TrialOptions& options);

}  // namespace eplb
