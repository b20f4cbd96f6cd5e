// What both row queues refuse, in the same words.
#ifndef EPLB_CUDA_ROW_QUEUE_CHECKS_H_
#define EPLB_CUDA_ROW_QUEUE_CHECKS_H_

#include <cstdint>

#include "absl/status/status.h"

namespace eplb::cuda {

// What a queue holds: batches that have not ended or have checksums that were not taken.
struct RowQueueLoad {
  int64_t num_batches = 0;
  int64_t num_rows = 0;  // of these batches
};

// errors: ResourceExhausted when another batch of `num_rows` rows is above what a queue holds.
absl::Status CheckRoom(const RowQueueLoad& load, int64_t num_rows);
// errors: InvalidArgument when `batch` is none of the num_batches that were added.
absl::Status CheckAdded(int64_t batch, int64_t num_batches);
// errors: InvalidArgument when a buffer would have less than 0 bytes.
absl::Status CheckBufferSize(int64_t num_bytes);

}  // namespace eplb::cuda

#endif  // EPLB_CUDA_ROW_QUEUE_CHECKS_H_
