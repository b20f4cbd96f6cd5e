// The queue of a CUDA stream on the stand-in for CUDA: its bookkeeping, not its kernel.
#include <gtest/gtest.h>

#include "cuda/row_queue.h"
#include "tests/cuda/row_queue_contract.h"

namespace eplb::cuda {
namespace {

absl::StatusOr<std::unique_ptr<RowQueue>> MakeQueue() { return MakeStreamRowQueue({}); }
absl::StatusOr<std::unique_ptr<RowQueue>> MakeQueueOfOtherDevice() {
  return MakeStreamRowQueue({.device = 1, .high_priority = true});
}
INSTANTIATE_TEST_SUITE_P(FakeStream, RowQueueContractTest,
                         ::testing::Values(&MakeQueue, &MakeQueueOfOtherDevice));

}  // namespace
}  // namespace eplb::cuda
