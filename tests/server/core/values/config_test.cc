#include "server/core/values/config.h"

#include <gtest/gtest.h>

#include "placement/policies/registry.h"
#include "server/core/decisions/question.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

TEST(ConfigTest, AJobsOwnConfigurationIsOverTheDaemonsAndUnderTheOperators) {
  Config config = TestConfig();
  config.job_settings[kJob] = {{"every_steps", 30}, {"min_gain", 0.3}};
  ConnectedJob job(config);
  EXPECT_EQ(job.daemon.View().policy().every_steps(), 30);
  EXPECT_EQ(job.daemon.View().policy().layers_per_chunk(), 2);
  ASSERT_TRUE(job.daemon.Ask(SetPolicy{{{"every_steps", 50}}}).ok());
  job.daemon.Restart();
  EXPECT_EQ(job.daemon.View().policy().every_steps(), 50);
  EXPECT_EQ(job.daemon.View().policy().min_gain(), 0.3);
}

TEST(ConfigTest, AStoredPatchThatIsNotValidAnyMoreIsLeftOut) {
  StoredJob stored{kJob, 4, 9, Exchanged({1})};
  stored.memory.settings["name"] = "of-another-version";
  const Core core(TestConfig(), 0, {stored}, absl::UnixEpoch());
  EXPECT_EQ(core.Job(kJob, absl::UnixEpoch())->policy().name(), "incremental");
}

// Returns the policy of a job whose ranks register this split.
std::string PolicyOf(const Config& config, SplitMode split) {
  TestJob job(config);
  for (FakeRank& rank : job.ranks) rank.identity.split = split;
  job.ConnectAll();
  job.Report(0, 9);
  EXPECT_EQ(job.daemon.pending_solve()->question->settings.policy.name,
            job.daemon.View().policy().name());
  EXPECT_EQ(job.daemon.pending_solve()->question->planner.options.split, split);
  return job.daemon.pending_solve()->question->settings.policy.name;
}

TEST(ConfigTest, ThePolicyDoesNotDependOnHowAJobSplits) {
  Config config = TestConfig();
  config.settings.policy = Settings().policy;
  for (const SplitMode split : {SplitMode::kEqual, SplitMode::kBatch}) {
    EXPECT_EQ(PolicyOf(config, split), kServicePolicyName);
  }
  config.job_settings[kJob] = {{"name", "balanced"}};
  EXPECT_EQ(PolicyOf(config, SplitMode::kBatch), "balanced");
}

}  // namespace
}  // namespace eplb::core
