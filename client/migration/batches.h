// Waiting for the batches of a row queue where a wait is allowed.
#ifndef EPLB_CLIENT_MIGRATION_BATCHES_H_
#define EPLB_CLIENT_MIGRATION_BATCHES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "cuda/row_queue.h"

namespace eplb {

// Copies of one arena take milliseconds: a GPU that needs longer than this does not answer.
inline constexpr absl::Duration kSettleTimeout = absl::Seconds(20);

// Until `batch` has ended. errors: DeadlineExceeded; Internal from the GPU.
absl::Status AwaitBatch(cuda::RowQueue& queue, int64_t batch, absl::Time deadline);

}  // namespace eplb

#endif  // EPLB_CLIENT_MIGRATION_BATCHES_H_
