#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/clock.h"

#include "cuda/checksum.h"
#include "cuda/row_queue.h"
#include "cuda/runtime.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/require_gpu.h"
#include "tests/cuda/row_queue_contract.h"

namespace eplb::cuda {
namespace {

using testing::OnDevice;

absl::StatusOr<std::unique_ptr<RowQueue>> MakeQueue() { return MakeStreamRowQueue({}); }
absl::StatusOr<std::unique_ptr<RowQueue>> MakeModestQueue() {
  return MakeStreamRowQueue({.max_blocks = 2, .high_priority = true});
}
INSTANTIATE_TEST_SUITE_P(Stream, RowQueueContractTest,
                         ::testing::Values(&MakeQueue, &MakeModestQueue));

class StreamRowQueueTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EPLB_REQUIRE_GPU_OR_SKIP();
    auto queue = MakeStreamRowQueue({});
    ASSERT_TRUE(queue.ok()) << queue.status();
    queue_ = *std::move(queue);
    auto stream = MakeStream();
    ASSERT_TRUE(stream.ok()) << stream.status();
    stream_ = *std::move(stream);
  }

  std::unique_ptr<RowQueue> queue_;
  Stream stream_;
};

TEST_F(StreamRowQueueTest, RunsBetweenWhatItFollowsAndWhatFollowsIt) {
  // Large, so that a missing order shows: a, then b from it by the queue, then a again.
  constexpr int64_t kSize = testing::kLargeBuffer;
  const auto a = queue_->Allocate(kSize);
  const auto b = queue_->Allocate(kSize);
  ASSERT_TRUE(a.ok() && b.ok());
  ASSERT_EQ(cudaMemsetAsync(a->bytes.data(), 1, kSize, stream_.get()), cudaSuccess);
  ASSERT_TRUE(queue_->Follow(stream_.get()).ok());
  const RowCopy row{a->bytes.data(), b->bytes.data(), kSize};
  const auto batch = queue_->Copy({&row, 1});
  ASSERT_TRUE(batch.ok()) << batch.status();
  ASSERT_TRUE(queue_->LetFollow(stream_.get()).ok());
  ASSERT_EQ(cudaMemsetAsync(a->bytes.data(), 2, kSize, stream_.get()), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
  const auto ended = queue_->Ended(*batch);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_TRUE(*ended) << "the stream has followed it";
  const std::vector<std::byte> ones(kSize, std::byte{1});
  const std::vector<uint64_t> expected{ChecksumOnHost(ones)};
  EXPECT_EQ(queue_->TakeChecksums(*batch), expected);
  const RowCopy sum{b->bytes.data(), nullptr, kSize};
  const auto sum_batch = queue_->Copy({&sum, 1});
  ASSERT_TRUE(sum_batch.ok()) << sum_batch.status();
  ASSERT_EQ(cudaStreamSynchronize(static_cast<cudaStream_t>(queue_->stream())), cudaSuccess);
  ASSERT_TRUE(*queue_->Ended(*sum_batch));
  EXPECT_EQ(queue_->TakeChecksums(*sum_batch), expected);
}

TEST_F(StreamRowQueueTest, MarkEndsAfterWhatTheCallerPutOnTheStream) {
  constexpr size_t kSize = 1 << 20;
  const OnDevice<uint8_t> memory{std::vector<uint8_t>(kSize)};
  auto* stream = static_cast<cudaStream_t>(queue_->stream());
  ASSERT_EQ(cudaMemsetAsync(memory.data(), 5, kSize, stream), cudaSuccess);
  const auto mark = queue_->Mark();
  ASSERT_TRUE(mark.ok()) << mark.status();
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  while (!*queue_->Ended(*mark)) ASSERT_LT(absl::Now(), deadline);
  EXPECT_EQ(memory.Read(), std::vector<uint8_t>(kSize, 5));
}

TEST_F(StreamRowQueueTest, BytesThatNoDeviceHasAreRefused) {
  EXPECT_EQ(queue_->Allocate(int64_t{1} << 50).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(queue_->Copy(std::vector<RowCopy>(1)).ok()) << "the queue goes on";
}

TEST_F(StreamRowQueueTest, ADeviceThatIsNotThereIsRefused) {
  for (const int32_t device : {-1, 1000}) {
    EXPECT_EQ(MakeStreamRowQueue({.device = device}).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace eplb::cuda
