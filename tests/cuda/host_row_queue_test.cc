#include <gtest/gtest.h>

#include <vector>

#include "cuda/row_queue.h"
#include "tests/cuda/row_queue_contract.h"

namespace eplb::cuda {
namespace {

absl::StatusOr<std::unique_ptr<RowQueue>> MakeQueue() { return MakeHostRowQueue(); }
INSTANTIATE_TEST_SUITE_P(Host, RowQueueContractTest, ::testing::Values(&MakeQueue));

TEST(HostRowQueueTest, BatchesHaveEndedWhenTheyAreAdded) {
  const std::unique_ptr<RowQueue> queue = MakeHostRowQueue();
  const std::vector<std::byte> source(100, std::byte{9});
  std::vector<std::byte> destination(100);
  const RowCopy row{source.data(), destination.data(), 100};
  const auto batch = queue->Copy({&row, 1});
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(destination, source);
  EXPECT_TRUE(*queue->Ended(*batch));
  EXPECT_EQ(queue->stream(), nullptr);
}

}  // namespace
}  // namespace eplb::cuda
