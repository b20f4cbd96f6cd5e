// The faults of fault_points_test in every place that a migration has: after each sign of progress
// and in each NCCL group.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/client/fault_points/process_job.h"

namespace eplb {
namespace {

using ::testing::IsEmpty;

constexpr int32_t kWorld = 4;
constexpr int32_t kMaxPlaces = 200;  // a migration here has fewer
constexpr int32_t kPlacesAtATime = 6;

// Runs place after place until no rank passes there any more. is_met: that it did.
void Sweep(const std::function<JobSpec(int32_t place)>& spec_of,
           const std::function<bool(const JobOutcome&)>& is_met) {
  for (int32_t place = 0; place < kMaxPlaces; place += kPlacesAtATime) {
    std::vector<JobSpec> specs;
    for (int32_t i = 0; i < kPlacesAtATime; ++i) specs.push_back(spec_of(place + i));
    int32_t num_met = 0;
    for (const JobOutcome& outcome : RunJobs(specs, kPlacesAtATime)) {
      EXPECT_THAT(Violations(outcome), IsEmpty()) << outcome.Story();
      num_met += is_met(outcome) ? 1 : 0;
    }
    EXPECT_TRUE(num_met > 0 || place > 0) << "the fault never came: " << specs.front().Name();
    if (num_met < kPlacesAtATime) return;
  }
  ADD_FAILURE() << "more than " << kMaxPlaces << " places";
}

class FaultSweepTest : public ::testing::TestWithParam<Rows> {
 protected:
  static void SweepRows(const Fault& fault, absl::Duration transfer_deadline) {
    for (int32_t victim = 0; victim < kWorld; ++victim) {
      Sweep(
          [&](int32_t place) {
            JobSpec spec{.world_size = kWorld,
                         .rows = GetParam(),
                         .fault = fault,
                         .transfer_deadline = transfer_deadline};
            spec.fault.point = Point::kDuringRows;
            spec.fault.victim = victim;
            spec.fault.nth = place;
            return spec;
          },
          [](const JobOutcome& outcome) { return outcome.struck(); });
    }
  }
};

TEST_P(FaultSweepTest, KillAfterEachSignOfProgress) {
  SweepRows({.strike = Strike::kKill}, absl::Seconds(10));
}

TEST_P(FaultSweepTest, StopAfterEachSignOfProgress) {
  SweepRows({.strike = Strike::kStop,
             .resume = Resume::kWhenPeersGaveUp,
             .rows_deadline = absl::Seconds(2)},
            absl::Seconds(10));
}

std::string NameOfRows(const ::testing::TestParamInfo<Rows>& rows) {
  return rows.param == Rows::kShared ? "Shared" : rows.param == Rows::kTcp ? "Tcp" : "Nccl";
}

INSTANTIATE_TEST_SUITE_P(Host, FaultSweepTest, ::testing::Values(Rows::kShared, Rows::kTcp),
                         NameOfRows);
#ifdef EPLB_FAKE_NCCL
INSTANTIATE_TEST_SUITE_P(Fake, FaultSweepTest, ::testing::Values(Rows::kNccl), NameOfRows);

class GroupSweepTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GroupSweepTest, InEachGroup) {
  const std::string kind = GetParam();
  const int32_t victim = 1;
  Sweep(
      [&](int32_t place) {
        return JobSpec{.world_size = kWorld,
                       .rows = Rows::kNccl,
                       .fault = {.victim = victim,
                                 .nccl = absl::StrCat("rank=", victim, ",group=",
                                                      kWorld - 1 + place, ",kind=", kind)},
                       .transfer_deadline = absl::Seconds(kind == "hang" ? 1 : 10)};
      },
      [](const JobOutcome& outcome) {
        return outcome.was_killed(outcome.spec.fault.victim) || outcome.num_dropped() > 0;
      });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GroupSweepTest,
                         ::testing::Values("die", "async_error", "corrupt", "hang"),
                         [](const auto& kind) { return std::string(kind.param); });
#endif

}  // namespace
}  // namespace eplb
