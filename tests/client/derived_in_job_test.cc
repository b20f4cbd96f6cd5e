// Derived tensors in a job: rebuilt inside StepBoundary, and what a failure means for all ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "client/rows/control/control_channel.h"
#include "tests/client/session/proposals.h"
#include "tests/client/session/scripted_daemon.h"
#include "tests/client/test_job.h"

namespace eplb {
namespace {

using ::testing::ElementsAre;

bool DerivedSwitched(const BoundaryResult& result) { return result.switched; }

class DerivedInJobTest : public ::testing::Test {
 protected:
  // Registers "layers.L.scale" on every layer and notes what its rebuild saw.
  TensorsHook AddScales() {
    return [this](TestRank& rank, std::vector<ExpertTensorView>& tensors) {
      for (int32_t layer = 0; layer < 3; ++layer) {
        ExpertTensorView scale;
        scale.name = absl::StrCat("layers.", layer, ".scale");
        scale.layer = layer;
        scale.role = Role::kDerived;
        scale.rebuild = [this, &rank](int32_t of, std::span<const int32_t> slots) {
          calls_[static_cast<size_t>(rank.rank())].push_back(
              absl::StrCat("layer ", of, " slots ", absl::StrJoin(slots, ","), " version ",
                           rank.client().placement().version, " wrong ", rank.WrongSlots()));
          return rank.rank() == failing_rank_ ? absl::InternalError("no memory") : absl::OkStatus();
        };
        tensors.push_back(scale);
      }
    };
  }

  // GPU 0 has slots 0 and 1, GPU 1 has 2 and 3.
  const Placement first_ = Placement::Static(SmallTopology());
  const Placement second_ = Swapped(Swapped(first_, 0, 0, 2), 2, 1, 0);
  const wire::Propose propose_ = ProposeTo(Running(0, first_), second_, 7, 1);
  int32_t failing_rank_ = -1;
  std::vector<std::vector<std::string>> calls_{kTestRanks};
};

TEST_F(DerivedInJobTest, RebuildSeesRowsInPlaceUnderTheNewPlacement) {
  ScriptedDaemon daemon({});
  StartedJob job(daemon.endpoint(), {.tensors = AddScales()});
  daemon.WaitForRanks(kTestRanks);
  daemon.SendAll(propose_);
  job.Run([](int32_t, TestRank& rank) {
    EXPECT_TRUE(rank.StepUntil(0, DerivedSwitched).ok());
    rank.client().Close("finished");
  });
  for (const size_t rank : {0U, 2U}) {
    EXPECT_THAT(calls_[rank], ElementsAre("layer 0 slots 0 version 7 wrong 0",
                                          "layer 2 slots 0,1 version 7 wrong 0"));
  }
  for (const size_t rank : {1U, 3U}) {
    EXPECT_THAT(calls_[rank], ElementsAre("layer 0 slots 0 version 7 wrong 0"));
  }
}

TEST_F(DerivedInJobTest, FailingRebuildEndsTheRunOnAllRanks) {
  failing_rank_ = 1;
  ScriptedDaemon daemon({});
  StartedJob job(daemon.endpoint(),
                 {.options = [](ClientOptions& o) { o.vote_deadline = absl::Seconds(2); },
                  .tensors = AddScales()});
  daemon.WaitForRanks(kTestRanks);
  daemon.SendAll(propose_);
  job.Run([&](int32_t r, TestRank& rank) {
    const absl::StatusOr<int64_t> step = rank.StepUntil(0, DerivedSwitched);
    if (r == failing_rank_) {
      const absl::Status lost = absl::DataLossError(
          "tensor \"layers.0.scale\": its rebuild failed for local slots 0: no memory");
      EXPECT_EQ(step.status(), lost);
      EXPECT_EQ(rank.Step(1000).status(), lost);
      EXPECT_EQ(rank.client().placement().version, 7);  // its rows were committed with the others'
      rank.Stop();
      return;
    }
    ASSERT_TRUE(step.ok()) << step.status();
    const absl::Status next =
        rank.StepUntil(*step + 1, [](const BoundaryResult&) { return false; }).status();
    EXPECT_EQ(next.code(), absl::StatusCode::kAborted) << next;
    EXPECT_THAT(MissingRanks(next), ElementsAre(RankId{1}));
  });
  const auto goodbye = daemon.WaitFor<wire::Goodbye>(1);
  ASSERT_TRUE(goodbye.has_value());
  EXPECT_TRUE(goodbye->failed);
  EXPECT_EQ(daemon.WaitFor<wire::Applied>(1)->version, 7);
}

TEST_F(DerivedInJobTest, RanksWithOtherDerivedTensorsStopAtTheStart) {
  TestJob job("", {.tensors = [&](TestRank& rank, std::vector<ExpertTensorView>& tensors) {
                if (rank.rank() != 2) AddScales()(rank, tensors);
              }});
  EXPECT_EQ(job.started().message(),
            "tensors: tensor 3 differs: rank 0 has layer 0 derived layers.0.scale, rank 2 has no "
            "such field");
}

}  // namespace
}  // namespace eplb
