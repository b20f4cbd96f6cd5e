// No event holds the core's lock for more than 5 ms of processor time, even of a wide job.
#include <gtest/gtest.h>

#include <vector>

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

constexpr TopologyOptions kWide = {
    .num_layers = 120, .num_experts = 4096, .num_slots = 4352, .num_gpus = 8};
constexpr absl::Duration kLongestHold = absl::Milliseconds(5);

// GPU of an expert: in blocks, or in turn.
int32_t GpuOf(int32_t expert, bool in_turn) {
  return in_turn ? expert % kWide.num_gpus : expert / (kWide.num_experts / kWide.num_gpus);
}

// Every expert on its GPU; the spare slots of a GPU hold its first experts once more.
Placement PlacementOf(bool in_turn) {
  const Topology topology = Topology::Make(kWide).value();
  IndexMatrix slots(kWide.num_layers, kWide.num_slots);
  for (int32_t gpu = 0; gpu < kWide.num_gpus; ++gpu) {
    std::vector<int32_t> experts;
    for (int32_t expert = 0; expert < kWide.num_experts; ++expert) {
      if (GpuOf(expert, in_turn) == gpu) experts.push_back(expert);
    }
    for (int32_t i = 0; i < topology.SlotsOf(GpuId{gpu}); ++i) {
      slots.col(topology.FirstSlotOf(GpuId{gpu}).value + i) =
          experts[static_cast<size_t>(i) % experts.size()];
    }
  }
  return Placement::FromSlots(topology, slots).value();
}

// Returns counts of 10 steps. The experts of GPU 0 are hot, in blocks or in turn, so that the other
// placement is even.
LoadMatrix CountsOf(bool in_turn) {
  LoadMatrix counts = LoadMatrix::Constant(kWide.num_layers, kWide.num_experts, 10);
  for (int32_t expert = 0; expert < kWide.num_experts; ++expert) {
    if (GpuOf(expert, in_turn) == 0) counts.col(expert) = 100;
  }
  return counts;
}

class HoldTest : public ::testing::Test {
 protected:
  explicit HoldTest(const Costs& costs = {}) : job_(ConfigWith(costs), kWide) {
    for (FakeRank& rank : job_.ranks) {
      rank.identity.staging_rows = kWide.num_slots;
      rank.identity.staging_layers = kWide.num_layers;
    }
    job_.ConnectAll();
  }

  static Config ConfigWith(const Costs& costs) {
    Config config = TestConfig();
    config.settings.policy = "balanced";
    config.settings.every_steps = 10;
    config.settings.layers_per_chunk = 60;
    config.settings.max_pause = absl::Minutes(10);
    config.costs = costs;
    return config;
  }

  // Each rank counts window `number`, which ran under the version before for its first step.
  void Report(int64_t number, const LoadMatrix& counts) {
    job_.daemon.Advance(absl::Seconds(1));
    const int64_t version = job_.ranks.front().version;
    for (FakeRank& rank : job_.ranks) {
      wire::LoadReport report;
      report.first_step = 10 * number;
      report.last_step = 10 * number + 9;
      report.counts = counts;
      report.version = version;
      if (version > ran_) {
        report.earlier.push_back({.last_step = report.first_step, .version = ran_});
        report.earlier.back().counts = LoadMatrix::Ones(counts.rows(), counts.cols());
      }
      rank.identity.step = report.last_step;
      job_.daemon.Say(rank.session, std::move(report));
    }
    ran_ = version;
  }

  void SwitchAll(int64_t step) {
    job_.Deliver();
    for (; job_.Vote(step); ++step) job_.Deliver();
  }

  void ExpectShortHolds() {
    EXPECT_FALSE(job_.daemon.longest_holds().empty());
    for (const auto& [event, hold] : job_.daemon.longest_holds()) {
      EXPECT_LT(hold, kLongestHold) << "of event " << event << " of the variant";
    }
  }

  TestJob job_;
  int64_t ran_ = 0;
};

TEST_F(HoldTest, AWideJobDecidesAndSwitches) {
  for (int64_t number = 0; number < 2; ++number) {
    const bool in_turn = number % 2 == 1;
    Report(number, CountsOf(in_turn));
    ASSERT_TRUE(job_.daemon.AnswerSolve(PlacementOf(!in_turn)));
    ASSERT_EQ(job_.daemon.state(), "PREPARING");
    SwitchAll(10 * number + 10);
    ASSERT_EQ(job_.daemon.state(), "IDLE");
  }
  EXPECT_EQ(job_.daemon.plans().at(2).result(), v1::PLAN_RESULT_COMMITTED);
  ExpectShortHolds();
}

TEST_F(HoldTest, OperatorsLookAtAWideJobChangeItAndRollItBack) {
  Report(0, CountsOf(false));
  ASSERT_TRUE(job_.daemon.AnswerSolve(PlacementOf(true)));
  SwitchAll(10);
  ASSERT_TRUE(job_.daemon.Preview(Rollback{}).ok());
  ASSERT_TRUE(job_.daemon.Ask(SetPolicy{{{"every_steps", 20}}}).ok());
  ASSERT_TRUE(job_.daemon.Ask(Rollback{}).ok());
  SwitchAll(20);
  EXPECT_EQ(job_.ranks.front().placement, Placement::Static(Topology::Make(kWide).value()));
  ExpectShortHolds();
}

TEST_F(HoldTest, ADaemonWithoutAStoreLearnsWhatAWideJobRuns) {
  Report(0, CountsOf(false));
  ASSERT_TRUE(job_.daemon.AnswerSolve(PlacementOf(true)));
  SwitchAll(10);
  job_.daemon.LoseStore();
  job_.ConnectAll();
  EXPECT_EQ(job_.daemon.state(), "IDLE");
  ExpectShortHolds();
}

}  // namespace
}  // namespace eplb::core
