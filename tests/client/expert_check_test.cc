// Client::CheckExperts in a job of two EP groups: what it finds, and what it leaves unchanged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/client/test_job.h"

namespace eplb {
namespace {

using ::testing::Each;

bool CheckVoted(const BoundaryResult& result) { return result.voted; }

TEST(CheckTest, DerivedTensorWithoutAWorkingRebuildIsFoundOnAllRanks) {
  std::vector<absl::Status> statuses(kTestRanks);
  StartedJob job("");
  job.Run([&](int32_t r, TestRank& rank) {
    // A cache of layer 1 that is never rebuilt: it stays with its slot.
    const uint64_t cached[] = {rank.BytesOf(1, 0), rank.BytesOf(1, 1)};
    statuses[static_cast<size_t>(r)] = rank.client().CheckExperts([&](int32_t layer, int32_t slot) {
      return rank.BytesOf(layer, slot) + (layer == 1 ? cached[slot] : 0);
    });
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_TRUE(rank.StepUntil(0, CheckVoted).ok());  // it is a finding, not the end
  });
  EXPECT_EQ(
      statuses[0],
      absl::InvalidArgumentError(
          "check: layer 1: expert 3 gives another output when it is moved from slot 3 of rank "
          "1 to slot 0 of rank 0: it computes with a tensor that is neither registered nor "
          "rebuilt (docs/registering-tensors.md)"));
  EXPECT_THAT(statuses, Each(statuses[0]));
}

TEST(CheckTest, FailingProbeIsNamedOnTheOthersAndRowsGoBack) {
  StartedJob job("");
  job.Run([](int32_t r, TestRank& rank) {
    const absl::Status status =
        rank.client().CheckExperts([&](int32_t layer, int32_t slot) -> absl::StatusOr<uint64_t> {
          if (r == 3 && layer == 2) return absl::InternalError("no memory");
          return rank.BytesOf(layer, slot);
        });
    EXPECT_EQ(status, r == 3 ? absl::InternalError("no memory")
                             : absl::FailedPreconditionError(
                                   "check: layer 2: the probe failed on rank 3: INTERNAL: no "
                                   "memory"));
    EXPECT_EQ(rank.WrongSlots(), 0);
    EXPECT_TRUE(rank.StepUntil(0, CheckVoted).ok());
  });
}

}  // namespace
}  // namespace eplb
