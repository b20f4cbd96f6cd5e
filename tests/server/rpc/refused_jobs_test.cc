#include "server/rpc/refused_jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(RefusedJobsTest, AJobOfManyRanksIsTakenOnce) {
  RefusedJobs jobs;
  for (int rank = 0; rank < 100; ++rank) jobs.Add(absl::StrCat("10.0.0.", rank), "train");
  EXPECT_THAT(jobs.Take(), ElementsAre("train"));
  EXPECT_THAT(jobs.Take(), IsEmpty());
}

TEST(RefusedJobsTest, InventedNamesOfOneHostNeverKeepOutTheJobOfAnother) {
  RefusedJobs jobs;
  for (int i = 0; i < 1000; ++i) jobs.Add("10.0.0.1", absl::StrCat("invented-", i));
  jobs.Add("10.0.0.2", "train");
  for (int i = 0; i < 1000; ++i) jobs.Add("10.0.0.1", absl::StrCat("again-", i));
  const auto taken = jobs.Take();
  EXPECT_THAT(taken, SizeIs(3));
  EXPECT_THAT(taken, Contains("train"));
}

TEST(RefusedJobsTest, AJobIsSampledAlthoughManyHostsInventNames) {
  constexpr int kSamples = 1000;
  int found = 0;
  for (int sample = 0; sample < kSamples; ++sample) {
    RefusedJobs jobs;
    for (int host = 0; host < 63; ++host) jobs.Add(absl::StrCat(host), absl::StrCat("x", host));
    jobs.Add("here", "train");
    const auto taken = jobs.Take();
    ASSERT_THAT(taken, SizeIs(kMaxRefusedJobs));
    found += taken.contains("train") ? 1 : 0;
  }
  // One sample in eight is expected to hold it.
  EXPECT_GT(found, kSamples / 16);
  EXPECT_LT(found, kSamples / 4);
}

}  // namespace
}  // namespace eplb
