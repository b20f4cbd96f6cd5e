#include "server/runner/solver.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/core/decisions/question.h"
#include "tests/server/test_stream.h"

namespace eplb {

namespace {

constexpr absl::Time kStart = absl::UnixEpoch();

TEST(FairShareTest, WhoUsedNothingHasUsedNothing) { EXPECT_EQ(FairShare().Used("a", kStart), 0); }

TEST(FairShareTest, UsesAddUpByJob) {
  FairShare share;
  share.Spend("a", absl::Seconds(2), kStart);
  share.Spend("a", absl::Seconds(3), kStart);
  share.Spend("b", absl::Seconds(1), kStart);
  EXPECT_EQ(share.Used("a", kStart), 5);
  EXPECT_EQ(share.Used("b", kStart), 1);
}

TEST(FairShareTest, ASecondCountsHalfAfterTheHalfLife) {
  FairShare share;
  share.Spend("a", absl::Seconds(8), kStart);
  EXPECT_DOUBLE_EQ(share.Used("a", kStart + FairShare::kHalfLife), 4);
  share.Spend("a", absl::Seconds(1), kStart + FairShare::kHalfLife);
  EXPECT_DOUBLE_EQ(share.Used("a", kStart + 2 * FairShare::kHalfLife), 2.5);
}

// A job that is asked to plan `load` by one policy, on the static layout of its shape.
core::Solve RequestOf(const std::string& job, int64_t solve_id, const std::string& policy,
                      const TopologyOptions& shape, Load load) {
  const auto window = std::make_shared<const Load>(std::move(load));
  core::DecisionQuestion question{
      .incumbent = std::make_shared<Placement>(Placement::Static(*Topology::Make(shape))),
      .windows = {{.first_step = 0, .last_step = 49, .load = window}},
      .last_step = 49,
      .staging_rows = 1 << 20,
      .limits = {.layers_per_chunk = 64, .rows_per_chunk = 1 << 20}};
  question.planner.options.candidates = {{policy}};
  question.planner.windows = {{window, 50}};
  question.planner.num_fresh = 1;
  question.planner.now = true;
  return {.job = job,
          .solve_id = solve_id,
          .question = std::make_shared<const core::DecisionQuestion>(std::move(question))};
}

core::Solve Request(const std::string& policy) {
  return RequestOf("job", 4, policy, kSmallShape, *Load::FromCounts(ReportOf(0).counts));
}

// Messages of a solver in order: "began a", "done a".
class Told {
 public:
  Solver::Sinks Sinks() {
    return {.started =
                [this](const core::SolveStarted& one) {
                  Add("began " + one.job);
                  WaitWhileHeld(one.job);
                },
            .done = [this](const core::Solved& one) { Add("done " + one.job); }};
  }
  // A solve of `job` that begins stays at its start until the job named last is another one, or
  // for 20 s.
  void Hold(const std::string& job) {
    const std::lock_guard lock(mutex_);
    held_ = job;
    changed_.notify_all();
  }
  // All that was said once there are `count` lines, or after 20 s.
  std::vector<std::string> WaitFor(size_t count) {
    std::unique_lock lock(mutex_);
    (void)changed_.wait_for(lock, std::chrono::seconds(20),
                            [this, count] { return lines_.size() >= count; });
    return lines_;
  }

 private:
  void Add(std::string line) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
    changed_.notify_all();
  }
  void WaitWhileHeld(const std::string& job) {
    std::unique_lock lock(mutex_);
    (void)changed_.wait_for(lock, std::chrono::seconds(20), [this, &job] { return held_ != job; });
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
  std::string held_;
};

core::Solve RequestOf(const std::string& job, int64_t solve_id, const TopologyOptions& shape) {
  LoadMatrix counts(shape.num_layers, shape.num_experts);
  std::mt19937_64 random(3);
  for (int64_t& cell : counts.reshaped()) cell = int64_t{1} << random() % 16;
  return RequestOf(job, solve_id, "balanced", shape, *Load::FromCounts(counts));
}

constexpr TopologyOptions kTiny = {1, 4, 4, 2, 1, 1};
constexpr TopologyOptions kLarge = {8, 256, 288, 32, 1, 1};       // milliseconds to seconds
constexpr TopologyOptions kHuge = {400, 1024, 2048, 1024, 1, 1};  // minutes

TEST(SolverTest, AJobThatUsesTheSolverMuchDelaysOthersByOneSolve) {
  Told told;
  Solver solver(told.Sinks(), 1);
  solver.Post(RequestOf("large", 1, kLarge));
  ASSERT_EQ(told.WaitFor(2).size(), 2U);
  // While this one is at work the large job asks again, before all the small ones.
  told.Hold("other");
  solver.Post(RequestOf("other", 2, kLarge));
  ASSERT_EQ(told.WaitFor(3).size(), 3U);
  solver.Post(RequestOf("large", 3, kLarge));
  for (int i = 0; i < 5; ++i) solver.Post(RequestOf("small" + std::to_string(i), 4 + i, kTiny));
  told.Hold("");
  const std::vector<std::string> lines = told.WaitFor(16);
  ASSERT_EQ(lines.size(), 16U);
  const std::vector<std::string> expected = {
      "began large",  "done large",  "began other",  "done other",  "began small0", "done small0",
      "began small1", "done small1", "began small2", "done small2", "began small3", "done small3",
      "began small4", "done small4", "began large",  "done large"};
  EXPECT_EQ(lines, expected);
}

TEST(SolverTest, ACancelledSolveEndsSoonWithoutAnAnswerAndTheNextOneBegins) {
  Told told;
  Solver solver(told.Sinks(), 1);
  solver.Post(RequestOf("huge", 1, kHuge));
  ASSERT_EQ(told.WaitFor(1).size(), 1U);
  solver.Post(RequestOf("forgotten", 2, kTiny));
  solver.Cancel({.job = "forgotten", .solve_id = 2});
  solver.Post(RequestOf("small", 3, kTiny));
  solver.Cancel({.job = "huge", .solve_id = 1});
  const std::vector<std::string> expected = {"began huge", "began small", "done small"};
  EXPECT_EQ(told.WaitFor(3), expected);
}

TEST(SolverTest, TheEndOfTheSolverDoesNotWaitForTheSolveAtWork) {
  Told told;
  {
    Solver solver(told.Sinks(), 1);
    solver.Post(RequestOf("huge", 1, kHuge));
    ASSERT_EQ(told.WaitFor(1).size(), 1U);
  }
  EXPECT_EQ(told.WaitFor(1), std::vector<std::string>{"began huge"});
}

TEST(SolverTest, ASecondThreadServesAnotherJobAndNeverTheSameOne) {
  Told told;
  Solver solver(told.Sinks(), 2);
  solver.Post(RequestOf("huge", 1, kHuge));
  ASSERT_EQ(told.WaitFor(1).size(), 1U);
  solver.Post(RequestOf("huge", 2, kTiny));
  solver.Post(RequestOf("small", 3, kTiny));
  std::vector<std::string> expected = {"began huge", "began small", "done small"};
  EXPECT_EQ(told.WaitFor(3), expected);
  solver.Cancel({.job = "huge", .solve_id = 1});
  expected.insert(expected.end(), {"began huge", "done huge"});
  EXPECT_EQ(told.WaitFor(5), expected);
}

TEST(SolverTest, TheAnswerCarriesJobAndId) {
  std::promise<core::Solved> answer;
  Solver solver({.started = [](const core::SolveStarted&) {},
                 .done = [&answer](core::Solved solved) { answer.set_value(std::move(solved)); }},
                1);
  solver.Post(Request("deepseek"));
  std::future<core::Solved> future = answer.get_future();
  ASSERT_EQ(future.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  const core::Solved solved = future.get();
  EXPECT_EQ(solved.job, "job");
  EXPECT_EQ(solved.solve_id, 4);
  ASSERT_TRUE(solved.planned.ok()) << solved.planned.status();
  EXPECT_TRUE((*solved.planned)->answer.has_value());
  EXPECT_GE(solved.seconds, 0);
}

}  // namespace

}  // namespace eplb
