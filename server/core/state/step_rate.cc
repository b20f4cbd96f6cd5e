// The times between rises of the highest step, and the deadlines that follow from them.
#include "server/core/state/step_rate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "server/core/state/state.h"

namespace eplb::core {

namespace {

constexpr int kPatienceIntervals = 6;
constexpr double kPatienceGaps = 1.5;

struct Rise {
  double seconds = 0;
  int64_t steps = 0;
};

void NoteGap(StepRate& rate, absl::Duration gap) {
  if (gap > rate.longest) {
    rate.second_longest = std::exchange(rate.longest, gap);
  } else {
    rate.second_longest = std::max(rate.second_longest, gap);
  }
}

// Returns 0 of none.
double Median(std::vector<double> seconds) {
  if (seconds.empty()) return 0;
  const auto middle = seconds.begin() + static_cast<ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

}  // namespace

absl::Duration PatienceFor(absl::Duration report_interval, absl::Duration usual_gap) {
  return std::max(
      {kLeastPatience, kPatienceIntervals * report_interval, kPatienceGaps * usual_gap});
}

void BeginSteps(Run& run, absl::Duration patience, absl::Duration usual_gap, absl::Time now) {
  run.rate = {
      .began = now, .longest = usual_gap, .second_longest = usual_gap, .due = now + patience};
}

void NoteStep(Run& run, int64_t step, absl::Time now) {
  StepRate& rate = run.rate;
  if (!rate.told.empty() && step <= rate.told.back().step) return;
  if (rate.told.empty()) {
    rate.first_step = step;
  } else {
    NoteGap(rate, now - rate.told.back().at);
  }
  rate.told.push_back({.step = step, .at = now});
  if (std::ssize(rate.told) > kMaxToldSteps) rate.told.pop_front();
  const absl::Time due = now + PatienceFor(ReportInterval(run), UsualGap(rate));
  // The first rise of a run is slow, and its second may follow at once.
  rate.due = rate.told.size() > 2 ? due : std::max(rate.due, due);
}

void NoteHelloStep(Run& run, int64_t step, absl::Time now) {
  StepRate& rate = run.rate;
  if (rate.told.empty()) {
    rate.first_step = step;
    rate.told.push_back({.step = step, .at = now});
  } else if (step - rate.told.back().step >= run.report_every) {
    NoteStep(run, step, now);
  }
}

void NoteUnswitched(StepRate& rate, double seconds) {
  rate.unswitched.push_back(seconds);
  if (std::ssize(rate.unswitched) == kMaxToldSteps) rate.unswitched.pop_front();
}

double SecondsPerStep(const StepRate& rate) {
  // Reports that were read together waited for the daemon: the time before them is that of all.
  std::vector<Rise> rises;
  for (size_t index = 1; index < rate.told.size(); ++index) {
    const ToldStep& before = rate.told[index - 1];
    const ToldStep& after = rate.told[index];
    if (rises.empty() || after.at - before.at >= kReadTogether) rises.emplace_back();
    rises.back().seconds += absl::ToDoubleSeconds(after.at - before.at);
    rises.back().steps += after.step - before.step;
  }
  // The first ones may have waited longer than is known.
  if (rises.size() > 1 && rate.told[1].at - rate.told[0].at < kReadTogether) {
    rises.erase(rises.begin());
  }
  std::vector<double> seconds;
  for (const Rise& rise : rises) {
    if (rise.seconds > 0) seconds.push_back(rise.seconds / static_cast<double>(rise.steps));
  }
  return Median(std::move(seconds));
}

double SecondsPerUnswitchedStep(const StepRate& rate) {
  const double of_all = SecondsPerStep(rate);
  if (rate.unswitched.empty()) return of_all;
  return std::min(of_all, Median({rate.unswitched.begin(), rate.unswitched.end()}));
}

absl::Duration VoteInterval(const Run& run) {
  const StepRate& rate = run.rate;
  if (rate.told.size() < 2) return absl::ZeroDuration();
  const double mean = absl::ToDoubleSeconds(rate.told.back().at - rate.told.front().at) /
                      static_cast<double>(rate.told.back().step - rate.told.front().step);
  return absl::Seconds(std::max(mean, SecondsPerStep(rate)) * run.vote_every);
}

absl::Duration ReportInterval(const Run& run) {
  const int32_t steps = std::max(run.report_every, run.report_interval_change.report_every);
  return absl::Seconds(SecondsPerStep(run.rate) * steps);
}

absl::Duration LongestGap(const StepRate& rate) {
  absl::Duration longest;
  for (size_t index = 1; index < rate.told.size(); ++index) {
    longest = std::max(longest, rate.told[index].at - rate.told[index - 1].at);
  }
  return longest;
}

absl::Duration UsualGap(const StepRate& rate) { return rate.second_longest; }

absl::Time LastRise(const StepRate& rate) {
  return rate.told.empty() ? absl::InfinitePast() : rate.told.back().at;
}

bool HasRanksThatTrain(const Job& job) {
  if (!job.current) return false;
  if (job.current->ending == Ending::kLost) return job.current->num_connected > 0;
  return job.current->ending == Ending::kLive;
}

bool StepsAdvance(const Job& job, absl::Time now) {
  return HasRanksThatTrain(job) && now <= job.current->rate.due;
}

}  // namespace eplb::core
