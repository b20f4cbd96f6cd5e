// Random orders of everything that can happen to three ranks and a daemon, by seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <string>

#include "absl/strings/escaping.h"

#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

constexpr int kSeeds = 200;
constexpr int kActions = 900;
// Events that the runs must meet often enough to be worth their time.
constexpr const char* kEvents[] = {"recovering", "run_ended",  "run_resumed", "proposed",
                                   "committed",  "cancelling", "withdrawn",   "store_failed"};

Config EagerConfig() {
  Config config = TestConfig();
  config.settings.every_steps = 10;
  config.settings.min_gain = 0;
  return config;
}

class RandomRun {
 public:
  explicit RandomRun(uint32_t seed) : random_(seed), job_(EagerConfig()) {
    for (FakeRank& one : job_.ranks) one.slow = true;
  }

  void Run() {
    for (int action = 0; action < kActions; ++action) Act(Draw(1000));
    Settle();
  }

  const TestJob& job() const { return job_; }
  int64_t commits() const { return commits_; }

 private:
  int Draw(int end) { return std::uniform_int_distribution<int>(0, end - 1)(random_); }

  void Act(int kind) {
    const int32_t rank = Draw(3);
    FakeRank& one = job_.ranks[rank];
    if (kind < 300) {
      DeliverOneDown(one);
    } else if (kind < 520) {
      DeliverOneUp(one);
    } else if (kind < 600) {
      one.FinishComputing();
    } else if (kind < 700) {
      if (one.session == 0) job_.Connect(rank);
    } else if (kind < 712) {
      if (one.session != 0) job_.Disconnect(rank);
    } else if (kind < 716) {
      RestartDaemon();
    } else if (kind < 720) {
      job_.daemon.store_works = !job_.daemon.store_works;
    } else if (kind < 800) {
      Boundary();
    } else if (kind < 900) {
      ReportNextWindow();
    } else if (kind < 980) {
      Solve();
    } else {
      job_.daemon.Advance(absl::Seconds(Draw(8)));
    }
    CheckRanksAgree();
  }

  void DeliverOneDown(FakeRank& one) {
    if (one.session == 0) return;
    if (const auto message = job_.daemon.TakeOne(one.session)) one.Receive(*message);
  }

  void DeliverOneUp(FakeRank& one) {
    if (one.session == 0 || one.outbox.empty()) return;
    const wire::UpMessage message = one.outbox.front();
    one.outbox.pop_front();
    job_.daemon.Say(one.session, message);
    if (job_.daemon.ClosedWith(one.session)) one.session = 0;
  }

  void RestartDaemon() {
    for (FakeRank& one : job_.ranks) {
      one.session = 0;
      one.outbox.clear();
    }
    job_.daemon.Restart();
  }

  void Boundary() {
    step_ += 2;
    const int64_t before = job_.ranks[0].version;
    job_.Vote(step_, /*transfer_works=*/Draw(4) != 0);
    if (job_.ranks[0].version != before) ++commits_;
  }

  void ReportNextWindow() {
    window_ += 10;
    step_ = std::max(step_, window_);
    for (FakeRank& one : job_.ranks) {
      one.identity.step = step_;
      if (one.session != 0) one.outbox.emplace_back(TestReport(window_ - 10, window_ - 1));
    }
  }

  void Solve() {
    std::vector<int32_t> layers;
    for (int32_t layer = 0; layer < 4; ++layer) {
      if (Draw(2) == 0) layers.push_back(layer);
    }
    job_.daemon.AnswerSolve(Exchanged(layers));
  }

  // I1, I2: all ranks run one version with one digest, and it never goes back.
  void CheckRanksAgree() {
    const Digest digest = DigestOf(job_.ranks[0].placement);
    EXPECT_GE(job_.ranks[0].version, highest_);
    highest_ = job_.ranks[0].version;
    for (const FakeRank& one : job_.ranks) {
      EXPECT_EQ(one.version, job_.ranks[0].version);
      EXPECT_EQ(DigestOf(one.placement), digest);
    }
  }

  // Faults stop; all ranks are connected and answer.
  void Settle() {
    job_.daemon.store_works = true;
    for (int round = 0; round < 8; ++round) {
      for (int32_t rank = 0; rank < 3; ++rank) {
        if (job_.ranks[rank].session == 0) job_.Connect(rank);
      }
      job_.Deliver();
      for (FakeRank& one : job_.ranks) one.FinishComputing();
      job_.Deliver();
      Boundary();
      job_.Deliver();
      job_.daemon.AnswerSolve(job_.ranks[0].placement);
      job_.daemon.Advance(absl::Seconds(61));
    }
  }

  std::mt19937 random_;
  TestJob job_;
  int64_t step_ = 0;
  int64_t window_ = 0;
  int64_t highest_ = 0;
  int64_t commits_ = 0;
};

TEST(CoreRandomTest, TheDaemonEndsIdleWithThePlacementThatTheRanksRun) {
  int64_t commits = 0;
  std::map<std::string, int64_t> events;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomRun run(seed);
    run.Run();
    const TestJob& job = run.job();
    const v1::JobStatus view = job.daemon.View();
    EXPECT_EQ(view.state(), v1::JOB_STATE_IDLE) << view.waiting_for() << "; " << view.last_reason();
    EXPECT_EQ(view.version(), job.ranks[0].version);
    EXPECT_EQ(absl::BytesToHexString(view.digest()), DigestOf(job.ranks[0].placement).Hex());
    EXPECT_EQ(job.daemon.stored().at(kJob).version, view.version());
    EXPECT_EQ(job.daemon.stored().at(kJob).placement, job.ranks[0].placement);
    EXPECT_EQ(job.daemon.CountEvents("quarantined"), 0);
    if (testing::Test::HasFailure()) return;
    commits += run.commits();
    for (const char* name : kEvents) events[name] += job.daemon.CountEvents(name);
  }
  EXPECT_GT(commits, kSeeds / 3);
  for (const auto& [name, count] : events) EXPECT_GT(count, kSeeds / 20) << name << " is not met";
}

}  // namespace
}  // namespace eplb::core
