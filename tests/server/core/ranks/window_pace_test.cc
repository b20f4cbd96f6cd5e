#include "server/core/ranks/window_pace.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>

#include "server/core/ranks/run.h"
#include "tests/server/core/core_harness.h"

namespace eplb::core {
namespace {

// A job whose windows have as many steps as the daemon wants. Its experts' shares drift by
// exp(drift * normal) a step, and a step has `tokens` tokens of an expert on average.
class PacedJob {
 public:
  PacedJob(double drift, double tokens, int32_t report_every = 8) : drift_(drift), tokens_(tokens) {
    wire::Hello hello = TestHello(0);
    hello.report_every = report_every;
    hello.shape.num_experts = 96;
    hello.shape.num_slots = 96;
    job.current.emplace(MakeRun(hello).value());
  }

  // Returns the wanted length after `count` windows.
  int32_t After(int count, int32_t longest = 64) {
    for (int i = 0; i < count; ++i) {
      const int32_t steps = WantedWindowSteps(job, longest);
      job.current->report_every = steps;
      Window window{.first_step = next_, .last_step = next_ + steps - 1};
      window.load = std::make_shared<const Load>(Counts(steps));
      next_ += steps;
      job.windows.complete.push_back(std::move(window));
      NoteWindowForPace(job, longest);
    }
    return WantedWindowSteps(job, longest);
  }

  void SetDrift(double drift) { drift_ = drift; }

  Job job;

 private:
  Load Counts(int32_t steps) {
    LoadMatrix counts = LoadMatrix::Zero(4, 96);
    std::normal_distribution<double> normal;
    for (int32_t step = 0; step < steps; ++step) {
      for (double& share : shares_.reshaped()) {
        share *= std::exp(drift_ * normal(random_));
        std::poisson_distribution<int64_t> tokens(share * tokens_);
        counts.data()[&share - shares_.data()] += tokens(random_);
      }
    }
    return Load::FromCounts(counts).value();
  }

  double drift_;
  const double tokens_;
  int64_t next_ = 0;
  std::mt19937 random_{7};
  RealMatrix shares_ = RealMatrix::Ones(4, 96);
};

TEST(WindowPaceTest, SteadyLoadsGetLongerWindowsUpToTheConfiguredLength) {
  PacedJob steady(/*drift=*/0, /*tokens=*/100);
  EXPECT_EQ(steady.After(2), 8) << "three windows are needed";
  EXPECT_EQ(steady.After(1), 16);
  EXPECT_EQ(steady.After(20), 64);
}

TEST(WindowPaceTest, LoadsThatChangeMoreThanTheyScatterGetShorterWindows) {
  PacedJob drifting(/*drift=*/0.2, /*tokens=*/10'000);
  EXPECT_EQ(drifting.After(3), 4);
  EXPECT_EQ(drifting.After(20), kLeastWindowSteps);
}

TEST(WindowPaceTest, TheLengthSettlesWhereChangeAndScatterBalance) {
  PacedJob both(/*drift=*/0.01, /*tokens=*/400);
  const int32_t settled = both.After(40);
  EXPECT_GT(settled, kLeastWindowSteps);
  EXPECT_LT(settled, 64);
}

TEST(WindowPaceTest, LengthsFollowTheLoadsFromTheFirstWindowAndAfterTheLongest) {
  PacedJob job(/*drift=*/0, /*tokens=*/100, /*report_every=*/2);
  EXPECT_EQ(job.After(40, /*longest=*/50), 50);
  job.SetDrift(0.3);
  EXPECT_LT(job.After(40, /*longest=*/50), 20);
}

TEST(WindowPaceTest, WindowsLastAsLongAsSeveralSolutions) {
  PacedJob job(/*drift=*/0.2, /*tokens=*/10'000);
  BeginSteps(*job.job.current, absl::Seconds(10), absl::ZeroDuration(), absl::UnixEpoch());
  for (int64_t step = 0; step < 400; step += 8) {
    NoteStep(*job.job.current, step, absl::UnixEpoch() + absl::Seconds(step));
  }
  job.job.decisions.solve_seconds = 2.5;
  EXPECT_EQ(job.After(10), 16) << "a power of two above 4 * 2.5";
}

}  // namespace
}  // namespace eplb::core
