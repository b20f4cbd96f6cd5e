#include "cuda/row_queue.h"

#include "base/errors.h"

namespace eplb::cuda {

absl::Status CheckRoom(const RowQueueLoad& load, int64_t num_rows) {
  if (load.num_batches >= RowQueue::kMaxBatches) {
    return ResourceExhausted("row queue holds ", load.num_batches, " batches, its most");
  }
  if (num_rows > RowQueue::kMaxRows - load.num_rows) {
    return ResourceExhausted("row queue holds ", load.num_rows, " rows, with ", num_rows,
                             " more it is above ", RowQueue::kMaxRows);
  }
  return absl::OkStatus();
}

absl::Status CheckAdded(int64_t batch, int64_t num_batches) {
  if (batch >= 0 && batch < num_batches) return absl::OkStatus();
  return InvalidInput("row queue has no batch ", batch, ", ", num_batches, " were added");
}

absl::Status CheckBufferSize(int64_t num_bytes) {
  if (num_bytes >= 0) return absl::OkStatus();
  return InvalidInput("buffer of ", num_bytes, " bytes, expected >= 0");
}

}  // namespace eplb::cuda
