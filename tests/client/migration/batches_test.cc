#include "client/migration/batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/control/monotonic_clock.h"

namespace eplb {
namespace {

// A queue whose only batch ends after some looks, or never.
class SlowQueue : public cuda::RowQueue {
 public:
  explicit SlowQueue(int32_t looks) : looks_(looks) {}
  absl::StatusOr<cuda::RowBuffer> Allocate(int64_t) override { return cuda::RowBuffer{}; }
  absl::StatusOr<cuda::RowBuffer> AllocatePinned(int64_t) override { return cuda::RowBuffer{}; }
  absl::Status Follow(void*) override { return absl::OkStatus(); }
  absl::Status LetFollow(void*) override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> Copy(std::span<const cuda::RowCopy>) override { return 0; }
  absl::StatusOr<int64_t> Transfer(std::span<const cuda::RowCopy>) override { return 0; }
  absl::StatusOr<int64_t> Mark() override { return 0; }
  absl::StatusOr<bool> Ended(int64_t batch) override {
    if (batch != 0) return absl::InternalError("cudaErrorLaunchFailure");
    return looks_ >= 0 && looks_-- == 0;
  }
  std::vector<uint64_t> TakeChecksums(int64_t) override { return {}; }
  void* stream() override { return nullptr; }

  int32_t looks() const { return looks_; }

 private:
  int32_t looks_;  // until it ends; negative: never
};

TEST(BatchesTest, ABatchIsLookedAtUntilItHasEnded) {
  SlowQueue queue(3);
  EXPECT_TRUE(AwaitBatch(queue, 0, absl::InfiniteFuture()).ok());
  EXPECT_EQ(queue.looks(), -1);
}

TEST(BatchesTest, ABatchThatHasEndedIsSeenAlsoPastTheDeadline) {
  SlowQueue queue(0);
  EXPECT_TRUE(AwaitBatch(queue, 0, absl::InfinitePast()).ok());
}

TEST(BatchesTest, TheDeadlineAndTheErrorOfTheDeviceEndTheWait) {
  SlowQueue queue(-1);
  const absl::Time deadline = MonotonicNow() + absl::Milliseconds(20);
  EXPECT_TRUE(absl::IsDeadlineExceeded(AwaitBatch(queue, 0, deadline)));
  EXPECT_GE(MonotonicNow(), deadline);
  EXPECT_EQ(AwaitBatch(queue, 1, absl::InfiniteFuture()),
            absl::InternalError("cudaErrorLaunchFailure"));
}

}  // namespace
}  // namespace eplb
