#include "client/run_log/boundary_times.h"

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "base/monotonic_clock.h"

namespace eplb {
namespace {

TEST(BoundaryTimesTest, ALineHasSpansAndRoundsAndOfChecksumsWhatIsKnown) {
  const BoundaryTimes times = {
      .step = 7,
      .version = 3,
      .outcome = "committed",
      .transport = "host",
      .whole = {.name = "boundary", .unix_micros = 100, .micros = 50},
      .spans = {{.name = "vote", .unix_micros = 101, .micros = 9}},
      .rounds = {
          {.round = 2, .unix_micros = 120, .micros = 5, .sent_bytes = 8, .received_bytes = 16},
          {.round = 4, .unix_micros = 125, .micros = 5, .checksum_micros = 1}}};
  EXPECT_EQ(BoundaryTimesToJson(times, 3, "run-0"),
            R"({"event":"boundary","rank":3,"run_id":"run-0","step":7,"version":3,)"
            R"("outcome":"committed","transport":"host","unix_micros":100,"micros":50,)"
            R"("spans":[{"name":"vote","unix_micros":101,"micros":9}],"rounds":[)"
            R"({"round":2,"unix_micros":120,"micros":5,"sent_bytes":8,"received_bytes":16},)"
            R"({"round":4,"unix_micros":125,"micros":5,"sent_bytes":0,"received_bytes":0,)"
            R"("checksum_micros":1}]})");
}

TEST(BoundaryTimerTest, SpansLieInTheBoundaryOnTheWallClock) {
  const int64_t before = absl::ToUnixMicros(absl::Now());
  const absl::Time began = MonotonicNow();
  BoundaryTimer timer(7, 3, began);
  const absl::Time vote = MonotonicNow();
  absl::SleepFor(absl::Milliseconds(2));
  timer.AddSpan("vote", vote);
  timer.AddRound({.round = 1, .began = vote, .ended = vote + absl::Microseconds(5)});
  timer.SetOutcome("dropped");
  const BoundaryTimes times = timer.Finish(MonotonicNow());
  const int64_t after = absl::ToUnixMicros(absl::Now());
  EXPECT_EQ(times.outcome, "dropped");
  ASSERT_EQ(times.spans.size(), 1U);
  const BoundarySpan& span = times.spans[0];
  EXPECT_GE(span.micros, 2000);
  EXPECT_LE(times.whole.unix_micros, span.unix_micros);
  EXPECT_LE(span.unix_micros + span.micros, times.whole.unix_micros + times.whole.micros);
  EXPECT_EQ(times.rounds.at(0).unix_micros, span.unix_micros);
  // Two readings of two clocks, a microsecond apart at most but for a step of the wall clock.
  EXPECT_GE(times.whole.unix_micros, before - 1000);
  EXPECT_LE(times.whole.unix_micros + times.whole.micros, after + 1000);
}

}  // namespace
}  // namespace eplb
