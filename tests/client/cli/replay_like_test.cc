#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

#include "base/files.h"
#include "client/cli/replay.h"
#include "tests/client/cli/scripted_query.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

using ::testing::HasSubstr;

// Windows of ten steps, after a run's first 32, in which two experts of one GPU have most tokens.
std::string Trace() {
  std::string lines;
  for (int first = 40; first < 70; first += 10) {
    absl::StrAppend(&lines, R"({"first_step":)", first, R"(,"last_step":)", first + 9,
                    R"(,"load":[[9,9,1,1]]})", "\n");
  }
  std::string path = ::testing::TempDir() + "/replay_like.jsonl";
  EXPECT_TRUE(WriteFileAtomically(path, lines).ok());
  return path;
}

TEST(ReplayLikeTest, TheTimeOfASwitchIsThatOfTheJobUnlessAFlagGivesIt) {
  ScriptedQuery daemon;
  v1::JobStatus& job = *daemon.status.add_jobs();
  job.set_job(kJob);
  job.mutable_switch_time()->set_decide_steps(3);
  job.mutable_switch_time()->set_vote_every(5);
  job.mutable_switch_time()->set_rows_per_chunk(2);
  ReplayCommandOptions options{
      .trace = Trace(), .like = kJob, .query = daemon.Options(Format::kJson)};
  options.frame.gpus = 2;
  options.frame.policy = "balanced";
  const auto switched_step = [&options] {
    const std::string text = TextOf(RunReplay(options, kPlain));
    return nlohmann::json::parse(text)["windows"][1]["switched_step"].get<int64_t>();
  };
  EXPECT_EQ(switched_step(), 55) << "held from step 53 on";
  options.vote_every = 1;
  EXPECT_EQ(switched_step(), 53);
  options.like = "";
  EXPECT_EQ(switched_step(), 51);
  options.like = kJob;
  job.mutable_switch_time()->set_rows_per_chunk(0);
  const Output wrong = RunReplay(options, kPlain);
  EXPECT_EQ(wrong.exit_code, kUsage);
  EXPECT_THAT(wrong.message, HasSubstr(absl::StrCat("job ", kJob, ": rows_per_chunk is 0")));
  job.clear_switch_time();  // the daemon began anew
  const Output none = RunReplay(options, kPlain);
  EXPECT_EQ(none.exit_code, kUsage);
  EXPECT_THAT(none.message, HasSubstr(absl::StrCat("job ", kJob, " has no switching time yet")));
  options.like = "other";
  EXPECT_EQ(RunReplay(options, kPlain).exit_code, kNotFound);
}

}  // namespace
}  // namespace eplb::cli
