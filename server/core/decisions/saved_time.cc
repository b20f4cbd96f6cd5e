#include "server/core/decisions/saved_time.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "base/text.h"
#include "server/core/decisions/prices.h"
#include "server/core/state/memory.h"
#include "server/core/state/sentences.h"
#include "server/core/state/step_rate.h"
#include "server/core/values/account.h"

namespace eplb::core {
namespace {

// A window without a switch whose steps took longer or shorter than the median by this factor had a
// checkpoint in it, or its reports were read late.
constexpr double kUsualFactor = 1.5;

// Rises of the step before their median counts. A daemon that recalled a price does without the
// uneven first ones; a run's first price needs fewer.
constexpr int kFirstRises = 3;
constexpr int kRisesOfARecalled = 8;

double StepsOf(const Window& window) {
  return static_cast<double>(window.last_step - window.first_step + 1);
}

// Returns the mean time of the window's steps, from the arrival of its reports and of those before;
// 0 if a switch was in it, or if both were read together.
double UnswitchedSeconds(const Job& job, const Window& window, const WindowArrival& before) {
  const std::vector<int64_t>& versions = job.windows.measured->versions;
  const bool switched = versions.size() != 1 || versions.front() != before.version;
  if (switched || window.first_step != before.last_step + 1) return 0;
  const absl::Duration elapsed = window.complete_at - before.at;
  return elapsed < kReadTogether ? 0 : absl::ToDoubleSeconds(elapsed) / StepsOf(window);
}

void AddWindow(const State& state, Job& job, const Window& window, const WindowArrival& before) {
  const Measured& measured = *job.windows.measured;
  if (!measured.peak_load_without_eplb) return;
  Account& account = job.decisions.account;
  ++account.windows;
  account.saved_peak_tokens += *measured.peak_load_without_eplb - measured.peak_load;
  account.saved.token_seconds = CostsOf(state, job).token_seconds;
  account.saved.of_batches = measured.split == SplitMode::kBatch;
  // A step of an engine is a question, which lasts as long as the engine likes.
  if (!job.current->asking.engine.empty()) return;
  StepRate& rate = job.current->rate;
  const auto rises = std::ssize(rate.told) - 1;
  const bool recalled = account.saved.steps > 0 && job.decisions.sampled.windows == 0;
  if (rises < (recalled ? kRisesOfARecalled : kFirstRises)) return;
  const double seconds = UnswitchedSeconds(job, window, before);
  if (seconds > 0) NoteUnswitched(rate, seconds);
  const double usual = SecondsPerUnswitchedStep(rate);
  if (!(usual > 0)) return;
  const double steps = StepsOf(window);
  account.saved.steps += window.last_step - window.first_step + 1;
  account.saved.peak_tokens += measured.peak_load;
  account.saved.step_seconds += usual * steps;
  if (window.first_step != before.last_step + 1) job.decisions.sampled = {};
  if (!(seconds < kUsualFactor * usual && usual < kUsualFactor * seconds)) return;
  const double tokens = window.load->ToDouble().sum();
  const StepSample sample{.steps = window.last_step - window.first_step + 1,
                          .seconds = seconds,
                          .peak_tokens = measured.peak_load / steps,
                          .mean_tokens = tokens / job.current->shape.num_gpus / steps};
  AddSample(sample, job.decisions.sampled, account.saved);
}

// The account as it is: a price that the configuration has now replaces the one at the last window.
Account AccountOf(const State& state, const Job& job) {
  Account account = job.decisions.account;
  if (job.current) account.saved.token_seconds = CostsOf(state, job).token_seconds;
  return account;
}

std::string WhyNotKnown(const Job& job, const Account& account) {
  if (account.windows == 0) return "not known: no load window is measured yet";
  if (job.current && !job.current->asking.engine.empty()) {
    return "not known: a serving engine reports no step times; set cost.token_ns";
  }
  return "not known: the time of a step is not measured yet";
}

std::string BasisText(const Account& account) {
  std::string text =
      absl::StrCat("fullest GPUs of each ", account.saved.of_batches ? "batch" : "window",
                   " against one slot per expert, ", CountText(account.windows, "window"), "; ",
                   TokenTimeText(account.saved));
  if (account.saved.earlier_seconds != 0) {
    absl::StrAppend(&text, "; with ", SecondsText(account.saved.earlier_seconds),
                    " of earlier runs");
  }
  return absl::StrCat(text, "; less pauses of ", SecondsText(account.pause_seconds));
}

}  // namespace

void NoteSaved(DecisionContext& context, Job& job, bool measured) {
  const Window& window = job.windows.complete.back();
  WindowArrival arrival{.last_step = window.last_step, .at = window.complete_at};
  if (measured) arrival.version = job.windows.measured->versions.back();
  const WindowArrival before = std::exchange(job.decisions.arrival, arrival);
  if (!measured) return;
  AddWindow(context.state, job, window, before);
  const bool priced = TokenTimeOf(job.decisions.account.saved).source != TokenTime::Source::kNone;
  absl::Time& written = job.decisions.account_written;
  if (!priced || context.now - written < kAccountWritten) return;
  written = context.now;
  Remember(job);
}

void ShowSaved(const State& state, const Job& job, v1::JobStatus& status) {
  const Account account = AccountOf(state, job);
  if (account.pause_seconds > 0) status.set_spent_seconds(account.pause_seconds);
  const bool priced = TokenTimeOf(account.saved).source != TokenTime::Source::kNone;
  const bool has_run = account.windows > 0 && priced;
  if (!has_run && account.saved.earlier_seconds == 0) {
    status.set_saved_basis(WhyNotKnown(job, account));
    return;
  }
  status.set_saved_seconds(FiniteOrZero(GrossSeconds(account) - CountedPauses(account)));
  status.set_saved_is_assumed(IsAssumed(account));
  status.set_saved_basis(
      has_run ? BasisText(account)
              : absl::StrCat("earlier runs alone; of this one ", WhyNotKnown(job, account)));
}

}  // namespace eplb::core
