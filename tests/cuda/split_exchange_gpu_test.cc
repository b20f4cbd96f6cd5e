// The exchange of a split between a stream and a thread of the host.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "cuda/split_exchange.h"
#include "tests/cuda/on_device.h"
#include "tests/cuda/require_gpu.h"

namespace eplb::cuda {
namespace {

using testing::OnDevice;

// Several counts and slots of each thread.
constexpr int32_t kCounts = 5000;
constexpr int32_t kSlots = 2100;
constexpr int32_t kWords = 6;
constexpr int64_t kLongDeadline = int64_t{60} * 1'000'000'000;

std::vector<int64_t> NumbersFrom(int64_t first, size_t count) {
  std::vector<int64_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

class LaunchSplitExchangeTest : public testing::StreamTest<> {
 protected:
  void SetUp() override {
    testing::StreamTest<>::SetUp();
    if (IsSkipped()) return;
    auto memory = MakePinnedMemory((kCounts + kSlots + kWords) * sizeof(int64_t));
    ASSERT_TRUE(memory.ok()) << memory.status();
    shared_ = *std::move(memory);
    tables_.emplace(std::vector<int32_t>{6});
    drawn_.emplace(std::vector<int64_t>{8});
    auto* const words = static_cast<int64_t*>(shared_.get());
    for (int32_t i = 0; i < kCounts + kSlots + kWords; ++i) words[i] = 0;
    mailbox_ = {.counts = words + kWords,
                .tables = words + 3,
                .drawn = words + 4,
                .asked = words,
                .late = words + 1,
                .done = words + 5,
                .answer = words + kWords + kCounts,
                .answered = words + 2};
  }

  SplitExchangeArgs Args(int64_t* gathered, int64_t* number, int64_t* own, int64_t deadline_ns) {
    return {.gathered = gathered,
            .tables = tables_->data(),
            .drawn = drawn_->data(),
            .number = number,
            .own = own,
            .mailbox = mailbox_,
            .num_counts = kCounts,
            .num_slots = kSlots,
            .deadline_ns = deadline_ns};
  }

  // The splitter's part of batch `number`. Returns the counts that it saw.
  std::vector<int64_t> Answer(int64_t number) const {
    while (LoadShared(mailbox_.asked) != number && !ends_) std::this_thread::yield();
    std::vector<int64_t> counts(kCounts);
    for (size_t i = 0; i < counts.size(); ++i) counts[i] = LoadShared(mailbox_.counts + i);
    for (int32_t i = 0; i < kSlots; ++i) StoreShared(mailbox_.answer + i, number + i);
    EXPECT_EQ(LoadShared(mailbox_.tables), 6);
    EXPECT_EQ(LoadShared(mailbox_.drawn), 8);
    StoreShared(mailbox_.answered, number);
    return counts;
  }

  std::optional<OnDevice<int32_t>> tables_;
  std::optional<OnDevice<int64_t>> drawn_;
  PinnedMemory shared_;
  SplitMailbox mailbox_;
  std::atomic<bool> ends_ = false;
};

// The second launch of a batch follows the first one without other work between them.
TEST_F(LaunchSplitExchangeTest, AllCountsPrecedeTheQuestionAndTheQuotasAreItsAnswer) {
  ASSERT_TRUE(LoadSplitExchangeKernels().ok());
  const OnDevice<int64_t> number(std::vector<int64_t>{0});
  constexpr int64_t kBatches = 4;
  for (int64_t batch = 1; batch <= kBatches; batch += 2) {
    const std::vector<int64_t> counts = NumbersFrom(kCounts * batch, kCounts);
    const OnDevice<int64_t> gathered(counts);
    const OnDevice<int64_t> own(std::vector<int64_t>(kSlots, -9));
    std::vector<int64_t> seen[2];
    std::thread splitter([&] {
      seen[0] = Answer(batch);
      seen[1] = Answer(batch + 1);
    });
    const SplitExchangeArgs args = Args(gathered.data(), number.data(), own.data(), kLongDeadline);
    const absl::Status first = LaunchSplitExchange(args, stream_.get());
    const absl::Status second = LaunchSplitExchange(args, stream_.get());
    const cudaError_t error = cudaStreamSynchronize(stream_.get());
    ends_ = error != cudaSuccess;  // no kernel asks any more
    splitter.join();
    ASSERT_TRUE(first.ok() && second.ok() && error == cudaSuccess) << first << second;
    EXPECT_EQ(seen[0], counts);
    EXPECT_EQ(seen[1], counts);
    EXPECT_EQ(own.Read(), NumbersFrom(batch + 1, kSlots));
    ASSERT_EQ(*mailbox_.late, 0);
  }
}

TEST_F(LaunchSplitExchangeTest, ALateAnswerLeavesNoQuotas) {
  ASSERT_TRUE(LoadSplitExchangeKernels().ok());
  const OnDevice<int64_t> number(std::vector<int64_t>{0});
  const OnDevice<int64_t> gathered(NumbersFrom(1, kCounts));
  const OnDevice<int64_t> own(std::vector<int64_t>(kSlots, 5));
  ASSERT_TRUE(
      LaunchSplitExchange(Args(gathered.data(), number.data(), own.data(), 1000), stream_.get())
          .ok());
  ASSERT_EQ(cudaStreamSynchronize(stream_.get()), cudaSuccess);
  EXPECT_EQ(own.Read(), std::vector<int64_t>(kSlots, kNoQuota));
  EXPECT_EQ(*mailbox_.late, 1);
  EXPECT_EQ(*mailbox_.done, 1);
}

}  // namespace
}  // namespace eplb::cuda
