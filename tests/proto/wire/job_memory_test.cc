#include "proto/wire/job_memory.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "proto/wire/clipped.h"
#include "proto/wire/names.h"

namespace eplb::wire {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// Every text as long as it may be, every number as large.
JobMemory Largest() {
  JobMemory memory{.term = kMost,
                   .serial = kMost,
                   .launch = kMost,
                   .incarnation = std::string(kMaxNameLength, 'i'),
                   .paused = true,
                   .pause_reason = std::string(kMaxText, 'p'),
                   .settings = {.policy_name = "incremental",
                                .mode = "observe",
                                .every_steps = std::numeric_limits<int32_t>::max(),
                                .min_gain = 0.3,
                                .horizon_steps = kMost,
                                .freeze_steps = std::string(39, '9'),
                                .max_pause = absl::Hours(1),
                                .layers_per_chunk = std::numeric_limits<int32_t>::max()},
                   .quarantine = std::string(kMaxText, 'q'),
                   .last_decision_step = kMost,
                   .back_off_length = std::numeric_limits<int32_t>::max(),
                   .back_off_to_skip = std::numeric_limits<int32_t>::max(),
                   .account_windows = kMost,
                   .account_saved_peak_tokens = 1e300,
                   .account_pause_seconds = 1e300,
                   .record_spent_seconds = 1e300,
                   .record_saved_tokens = 1e300,
                   .record_start_tokens = 1e300,
                   .report_seconds = 1e300,
                   .gap_seconds = 1e300,
                   .next_version = kMost};
  for (size_t launch = 0; launch < kMaxGoneLaunches; ++launch) {
    memory.gone.push_back({std::string(kMaxNameLength, 'g'), kMost});
  }
  return memory;
}

// A longer one would be written and not read again, and the store would count as damaged.
TEST(JobMemoryTest, TheLargestIsReadAsItWasWritten) {
  const std::string bytes = MemoryBytes(Largest());
  EXPECT_LE(bytes.size(), kMaxMemoryBytes / 2);
  const auto read = MemoryFromBytes(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, Largest());
}

TEST(JobMemoryTest, LongReasonsAreCutWhereTheyAreWritten) {
  JobMemory memory = Largest();
  memory.pause_reason = std::string(size_t{1} << 20, 'p');
  memory.quarantine = std::string(size_t{1} << 20, 'q');
  const auto read = MemoryFromBytes(MemoryBytes(memory));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->pause_reason.size(), kMaxText);
  EXPECT_EQ(read->quarantine.size(), kMaxText);
}

TEST(JobMemoryTest, AGainThatIsNoNumberIsRefused) {
  const auto read = MemoryFromBytes(
      MemoryBytes({.settings = {.min_gain = std::numeric_limits<double>::quiet_NaN()}}));
  EXPECT_EQ(read.status().message(), "min_gain is not finite");
}

TEST(JobMemoryTest, APauseOfManyYearsIsRefused) {
  const auto read =
      MemoryFromBytes(MemoryBytes({.settings = {.max_pause = absl::Hours(24 * 365 * 200)}}));
  EXPECT_EQ(read.status().message(), "max_pause_seconds is out of range");
}

}  // namespace
}  // namespace eplb::wire
