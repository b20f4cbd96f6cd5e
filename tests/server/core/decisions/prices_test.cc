#include "server/core/decisions/prices.h"

#include <gtest/gtest.h>

#include "server/core/ranks/run.h"
#include "server/core/state/step_rate.h"
#include "server/core/values/account.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

TEST(CostsTest, TheTimeOfATokenIsSharedByTheEpGroupsThatSplitTheTokens) {
  const auto token_seconds = [](int32_t world, int32_t pipeline_stages, int32_t tensor_parallel) {
    State state;
    state.config.costs.token_seconds = 12;
    wire::Hello hello = TestHello(0);
    hello.world_size = world;
    hello.pipeline_parallel_size = pipeline_stages;
    hello.expert_tensor_parallel = tensor_parallel;
    Job job;
    job.current.emplace(MakeRun(hello).value());
    return CostsOf(state, job).token_seconds;
  };
  EXPECT_EQ(token_seconds(3, 1, 1), 12);
  EXPECT_EQ(token_seconds(12, 1, 1), 3);
  EXPECT_EQ(token_seconds(12, 4, 1), 12);
  EXPECT_EQ(token_seconds(12, 1, 2), 6);
  EXPECT_EQ(token_seconds(36, 2, 2), 4);
}

// Returns a job with these measured boundaries.
Job JobAfter(const std::vector<MeasuredPause>& pauses) {
  Job job;
  job.current.emplace(MakeRun(TestHello(0)).value());
  job.decisions.pauses.assign(pauses.begin(), pauses.end());
  return job;
}

BoundaryLimits LimitsAfter(const std::vector<MeasuredPause>& pauses) {
  return LimitsOf(JobAfter(pauses));
}

Costs PricesAfter(const std::vector<MeasuredPause>& pauses) {
  State state;
  state.config.costs.token_seconds = 1e-9;
  state.config.costs.bandwidths = BandwidthSource::kAssumed;
  return PricesOf(state, JobAfter(pauses));
}

TEST(PricesTest, AStepWithoutASwitchPricesATokenForAPolicyThatChooses) {
  Job job = JobAfter({});
  job.settings.policy = "auto";
  job.windows.measured = Measured{.first_step = 0, .last_step = 9, .peak_load = 1000};
  const absl::Time now = absl::UnixEpoch();
  job.current->rate.told = {{.step = 9, .at = now}, {.step = 19, .at = now + absl::Seconds(20)}};
  EXPECT_DOUBLE_EQ(PricesOf({}, job).token_seconds, kExpertsShareOfStep * 2 / 100);
  NoteUnswitched(job.current->rate, 0.5);
  EXPECT_DOUBLE_EQ(PricesOf({}, job).token_seconds, kExpertsShareOfStep * 0.5 / 100);
}

TEST(PricesTest, TheFixedTimeOfABoundaryIsPricedApartWhereSwitchesShowIt) {
  const Costs alike =
      PricesAfter({{.bytes = 1000, .seconds = 0.5}, {.bytes = 1010, .seconds = 0.3}});
  EXPECT_DOUBLE_EQ(alike.intra_bytes_per_s, 2010 / 0.8);
  EXPECT_EQ(alike.stall_seconds, 0);
  const Costs apart =
      PricesAfter({{.bytes = 1000, .seconds = 0.5}, {.bytes = 100, .seconds = 0.14}});
  EXPECT_NEAR(apart.intra_bytes_per_s, 900 / 0.36, 1e-6);
  EXPECT_NEAR(apart.stall_seconds, 0.1, 1e-12);
  const Costs steep =
      PricesAfter({{.bytes = 1000, .seconds = 0.2}, {.bytes = 100, .seconds = 0.2}});
  EXPECT_NEAR(steep.intra_bytes_per_s, 2 * 1100 / 0.4, 1e-6) << "half of the time is the bytes'";
}

TEST(LimitsTest, ASmallAndALargeChunkShowWhatABoundaryTakesWithoutBytes) {
  EXPECT_EQ(LimitsAfter({}).seconds_per_byte, 0);
  const BoundaryLimits one = LimitsAfter({{.bytes = 1000, .seconds = 0.5}});
  EXPECT_DOUBLE_EQ(one.seconds_per_byte, 0.5 / 1000);
  EXPECT_EQ(one.fixed_seconds, 0);
  const BoundaryLimits both =
      LimitsAfter({{.bytes = 1000, .seconds = 0.5}, {.bytes = 100, .seconds = 0.14}});
  EXPECT_DOUBLE_EQ(both.seconds_per_byte, 0.36 / 900);
  EXPECT_DOUBLE_EQ(both.fixed_seconds, 0.1);
}

TEST(LimitsTest, AtLeastHalfOfTheTimeIsThatOfTheBytes) {
  const BoundaryLimits limits =
      LimitsAfter({{.bytes = 1000, .seconds = 0.2}, {.bytes = 100, .seconds = 0.19}});
  EXPECT_DOUBLE_EQ(limits.seconds_per_byte, 0.1 / 1000);
  EXPECT_DOUBLE_EQ(limits.fixed_seconds, 0.1);
  const BoundaryLimits slow_start =
      LimitsAfter({{.bytes = 1000, .seconds = 0.1}, {.bytes = 100, .seconds = 0.2}});
  EXPECT_DOUBLE_EQ(slow_start.seconds_per_byte, 0.1 / 1000);
  EXPECT_EQ(slow_start.fixed_seconds, 0);
}

TEST(SwitchTimeTest, ItFollowsVotesStagingSolutionAndPauses) {
  Job job;
  job.current.emplace(MakeRun(TestHello(0)).value());
  for (Rank& rank : job.current->ranks) rank.staging_rows = 2;
  SwitchTime time = SwitchTimeOf(job);
  EXPECT_EQ(time.decide_steps, 1) << "no step was measured";
  EXPECT_EQ(time.vote_every, 2);
  EXPECT_EQ(time.rows_per_chunk, 2 * kUnsaidStagingLayers);
  EXPECT_EQ(time.layers_per_chunk, job.settings.layers_per_chunk);
  EXPECT_EQ(time.max_pause_seconds, 0.2);
  EXPECT_EQ(time.seconds_per_byte, 0);

  const absl::Time begin = absl::UnixEpoch();
  job.current->rate.told = {{.step = 10, .at = begin},
                            {.step = 20, .at = begin + absl::Seconds(1)}};
  job.decisions.solve_seconds = 0.2;
  job.decisions.pauses.push_back({.bytes = 100, .seconds = 0.05});
  time = SwitchTimeOf(job);
  EXPECT_DOUBLE_EQ(time.decide_steps, 2.5);
  EXPECT_DOUBLE_EQ(time.seconds_per_byte, 0.0005);
}

}  // namespace
}  // namespace eplb::core
