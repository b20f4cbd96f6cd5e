// An optimizer that is sharded within each expert over EP groups: each EP group registers pieces of
// its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "tests/client/session/proposals.h"
#include "tests/client/session/scripted_daemon.h"
#include "tests/client/test_job.h"

namespace eplb {
namespace {

constexpr int64_t kFirstPiece = 24;  // bytes of the 40 of a state row
constexpr int64_t kMore = 8;         // bytes that only the second EP group has
constexpr size_t kSlots = 2;         // slots of a GPU

// Ranks 2 and 3 are the second EP group: it has the state in two pieces, and one tensor more.
class ShardedStateTest : public ::testing::Test {
 protected:
  TensorsHook CutState() {
    return [this](TestRank& rank, std::vector<ExpertTensorView>& tensors) {
      if (rank.rank() < 2) return;
      std::vector<ExpertTensorView> more;
      for (ExpertTensorView& tensor : tensors) {
        if (tensor.role != Role::kState) continue;
        ExpertTensorView rest = tensor;
        rest.name = absl::StrCat(tensor.name, ".rest");
        rest.base = static_cast<std::byte*>(tensor.base) + kFirstPiece;
        rest.row_bytes = tensor.row_bytes - kFirstPiece;
        tensor.row_bytes = kFirstPiece;
        ExpertTensorView extra = tensor;
        extra.name = absl::StrCat(tensor.name, ".more");
        extra.base = MoreOf(rank.rank(), tensor.layer);
        extra.row_bytes = kMore;
        extra.row_stride = kMore;
        more.push_back(rest);
        more.push_back(extra);
      }
      tensors.insert(tensors.end(), more.begin(), more.end());
    };
  }
  std::byte* MoreOf(int32_t rank, int32_t layer) {
    return more_[static_cast<size_t>(rank)][static_cast<size_t>(layer)];
  }

  const Placement first_ = Placement::Static(SmallTopology());
  const wire::Propose propose_ = ProposeTo(Running(0, first_), Swapped(first_, 0, 0, 2), 7, 1);
  std::byte more_[kTestRanks][3][kSlots * kMore] = {};
};

TEST_F(ShardedStateTest, EachEpGroupMovesItsPiecesUnderOnePlan) {
  for (const StatePlacement state : {StatePlacement::kEveryReplica, StatePlacement::kWithPrimary}) {
    for (int32_t rank = 2; rank < kTestRanks; ++rank) {
      std::fill_n(MoreOf(rank, 0), kMore, static_cast<std::byte>(10 * rank));
      std::fill_n(MoreOf(rank, 0) + kMore, kMore, static_cast<std::byte>(10 * rank + 1));
    }
    ScriptedDaemon daemon({});
    StartedJob job(
        daemon.endpoint(),
        {.options = [&](ClientOptions& o) { o.state_placement = state; }, .tensors = CutState()});
    daemon.WaitForRanks(kTestRanks);
    daemon.SendAll(propose_);
    job.Run([](int32_t r, TestRank& rank) {
      int64_t received = 0;
      const auto step = rank.StepUntil(0, [&](const BoundaryResult& result) {
        received = result.received_bytes;
        return result.switched;
      });
      EXPECT_TRUE(step.ok()) << step.status();
      EXPECT_EQ(rank.WrongSlots(), 0);
      EXPECT_EQ(received, 96 + 40 + (r < 2 ? 0 : kMore));
    });
    EXPECT_EQ(MoreOf(2, 0)[0], std::byte{30});
    EXPECT_EQ(MoreOf(3, 0)[0], std::byte{20});
    EXPECT_EQ(MoreOf(2, 0)[kMore], std::byte{21});
    for (int32_t rank = 0; rank < kTestRanks; ++rank) {
      EXPECT_EQ(daemon.WaitFor<wire::Hello>(rank)->state_bytes,
                40 + kMore);  // the largest EP group's
      EXPECT_EQ(daemon.WaitFor<wire::Prepared>(rank)->plan_hash,
                daemon.WaitFor<wire::Prepared>(0)->plan_hash);
    }
  }
}

TEST_F(ShardedStateTest, RanksOfOneEpGroupMustHaveTheSamePieces) {
  TestJob job("", {.tensors = [](TestRank& rank, std::vector<ExpertTensorView>& tensors) {
                if (rank.rank() != 3) return;
                for (ExpertTensorView& tensor : tensors) {
                  if (tensor.role == Role::kState) tensor.row_bytes = kFirstPiece;
                }
              }});
  EXPECT_EQ(job.started(),
            absl::FailedPreconditionError(
                "tensors: state 0 differs inside an EP group: rank 2 has layer 0 state "
                "layers.0.m row_bytes 40, rank 3 has layer 0 state layers.0.m "
                "row_bytes 24"));
}

}  // namespace
}  // namespace eplb
