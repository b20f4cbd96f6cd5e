#include "server/core/state/sentences.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/text.h"
#include "proto/wire/message_json.h"
#include "server/core/state/ending.h"

namespace eplb::core {
namespace {

constexpr size_t kMaxNamed = 8;

template <class Predicate>
std::vector<int32_t> RanksWhere(const Run& run, Predicate predicate) {
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < run.world_size(); ++rank) {
    if (predicate(run.ranks[rank])) ranks.push_back(rank);
  }
  return ranks;
}

// Empty when all ranks of a live run are known.
std::string WaitingForHellos(const Job& job) {
  if (!job.current) return "the ranks to register";
  const Run& run = *job.current;
  const auto missing = RanksWhere(run, [](const Rank& rank) { return !rank.said_hello; });
  if (missing.empty()) return "";
  return absl::StrCat(RankList(missing, run.world_size()), " to register");
}

std::string WaitingForRelease(const Job& job) {
  if (const std::string hellos = WaitingForHellos(job); !hellos.empty()) {
    return job.refused.reason.empty() ? hellos : absl::StrCat(hellos, "; ", job.refused.reason);
  }
  const Run& run = *job.current;
  const auto ready = RanksWhere(run, [](const Rank& rank) { return rank.prepared_version; });
  if (!ready.empty()) {
    return absl::StrCat(RankList(ready, run.world_size()),
                        " to answer the Cancel of an earlier proposal");
  }
  const auto newest = std::ranges::max_element(run.ranks, [](const Rank& a, const Rank& b) {
    return a.running_version < b.running_version;
  });
  const auto behind = RanksWhere(
      run, [&newest](const Rank& rank) { return rank.running_version != newest->running_version; });
  if (!behind.empty()) {
    return absl::StrCat(RankList(behind), " to apply version ", newest->running_version,
                        ", which rank ", newest - run.ranks.begin(), " runs");
  }
  if (job.pending_fetch.session != 0) {
    return absl::StrCat("rank ", job.pending_fetch.rank, " to send the placement with digest ",
                        ShortHex(newest->running_digest));
  }
  return absl::StrCat("a rank to connect and send the placement with digest ",
                      ShortHex(newest->running_digest));
}

std::string WaitingForAnswers(const Job& job) {
  const int64_t version = job.proposal->message.version;
  const auto ranks = [&job](const auto& predicate) {
    return RankList(RanksWhere(*job.current, predicate), job.current->world_size());
  };
  const auto silent = [](const Rank& rank) { return rank.answer == Answer::kNone; };
  const auto open = [](const Rank& rank) {
    return rank.answer != Answer::kApplied && rank.answer != Answer::kFailed;
  };
  if (!job.current->asking.engine.empty()) {
    return absl::StrCat("the next question of ", job.current->asking.engine,
                        ", which shows whether it runs version ", version);
  }
  switch (job.phase) {
    case Phase::kPreparing:
      return absl::StrCat(ranks(silent), " to be PREPARED for version ", version);
    case Phase::kVoting:
      return absl::StrCat(ranks(open), " to report version ", version, " as Applied");
    default:
      return absl::StrCat(ranks(open), " to answer the Cancel of version ", version);
  }
}

// Empty when decisions may be made.
std::string WaitingForThaw(const Job& job) {
  const StepRange& freeze = job.settings.freeze_steps;
  const int64_t step =
      job.windows.complete.empty() ? job.step : job.windows.complete.back().last_step;
  if (!freeze.Holds(step)) return "";
  return absl::StrCat("step ", freeze.last + 1, ": nothing is decided in the frozen steps ",
                      wire::StepsText(freeze));
}

}  // namespace

std::string RankList(const std::vector<int32_t>& ranks, int32_t world_size) {
  return ListRanks(ranks, kMaxNamed, static_cast<size_t>(world_size));
}

std::string ShortHex(const Digest& digest) { return digest.Hex().substr(0, 12); }

// The phases have the values of the message in their order, without the unspecified one.
v1::JobState StateOf(Phase phase) {
  static_assert(static_cast<int>(Phase::kQuarantine) + 1 == v1::JOB_STATE_QUARANTINE);
  return static_cast<v1::JobState>(static_cast<int>(phase) + 1);
}

v1::JobState StateOf(const Job& job) {
  const v1::RunEnd* end = EndOf(job);
  if (end == nullptr) return StateOf(job.phase);
  if (end->ending() == v1::RUN_ENDING_FINISHED) return v1::JOB_STATE_FINISHED;
  return end->ending() == v1::RUN_ENDING_FAILED ? v1::JOB_STATE_FAILED : v1::JOB_STATE_LOST;
}

std::string StateText(const Job& job) {
  const v1::RunEnd* end = EndOf(job);
  const std::string state = wire::EnumText(StateOf(job));
  if (end == nullptr) return absl::StrCat("is ", state, ", waiting for ", WaitingFor(job));
  return absl::StrCat("has ended (", state, "): ", end->reason());
}

std::string WorseText(const Windows& windows) {
  if (windows.worse_in_a_row < kWorseWindows) return "";
  const Measured& measured = *windows.measured;
  return absl::StrFormat(
      "less even than without EPLB for %d windows in a row: balancedness %.3f against %.3f on "
      "steps %d..%d",
      windows.worse_in_a_row, measured.balancedness, *measured.balancedness_without_eplb,
      measured.first_step, measured.last_step);
}

std::string WaitingFor(const Job& job) {
  if (const v1::RunEnd* end = EndOf(job)) {
    return end->ending() == v1::RUN_ENDING_LOST ? "its ranks to reconnect, or a new run" : "";
  }
  switch (job.phase) {
    case Phase::kRecovering:
      return WaitingForRelease(job);
    case Phase::kIdle:
      return WaitingForThaw(job);
    case Phase::kSolving:
      return job.solving.began ? "the solver" : "the solver, which works for other jobs";
    case Phase::kPreparing:
    case Phase::kVoting:
    case Phase::kCancelling:
      return WaitingForAnswers(job);
    case Phase::kQuarantine:
      return absl::StrCat("an operator, or a new run: ", job.quarantine);
  }
  return "";
}

}  // namespace eplb::core
