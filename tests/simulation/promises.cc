#include "tests/simulation/promises.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace eplb::simulation {
namespace {

constexpr char kPrefix[] = "run-";
constexpr size_t kPrefixLength = sizeof(kPrefix) - 1;

}  // namespace

std::string RunName(int number) { return absl::StrCat(kPrefix, number); }

int RunOf(const std::string& run_id) {
  int number = 0;
  if (run_id.size() < kPrefixLength || !absl::SimpleAtoi(run_id.substr(kPrefixLength), &number)) {
    return 0;
  }
  return number;
}

void Promises::Proposed(const std::string& daemon, const std::string& job, int run,
                        int64_t version) {
  Promise& promise = promises_[{daemon, job}];
  if (run < promise.owner && !disputed_.contains(job)) {
    context_.Violation("runs: ", daemon, " proposes version ", version, " of ", job, " to run ",
                       run, ", which run ", promise.owner, " replaced");
  }
  promise.owner = std::max(promise.owner, run);
  if (version <= promise.highest_proposed) return;  // again, to a rank that came back
  promise.highest_proposed = version;
  if (promise.paused) {
    context_.Violation("pause: ", daemon, " proposes version ", version, " of ", job,
                       ", which an operator paused");
  }
  // The quarantine of one run is forgotten when another run owns the job.
  if (promise.quarantined == run && !disputed_.contains(job)) {
    context_.Violation("QUARANTINE: ", daemon, " proposes version ", version, " of ", job,
                       " to run ", run, ", which nobody resumed");
  }
}

void Promises::Paused(const std::string& daemon, const std::string& job) {
  promises_[{daemon, job}].paused = true;
  context_.Count("operator_paused");
}

void Promises::Resumed(const std::string& daemon, const std::string& job) {
  Promise& promise = promises_[{daemon, job}];
  promise.paused = false;
  promise.quarantined = 0;
  for (auto& [key, one] : promises_) {
    if (key.second != job) continue;
    one.paused_before = false;
    one.quarantined_before = 0;
  }
  context_.Count("operator_resumed");
}

void Promises::Carried(const std::string& daemon, const std::string& job,
                       const wire::JobMemory& memory) {
  Promise& promise = promises_[{daemon, job}];
  if (memory.paused && std::exchange(promise.paused_before, false)) {
    promise.paused = true;
    context_.Count("pause_carried");
  }
  const bool is_the_launch = promise.quarantined_before == RunOf(memory.run_id);
  if (!memory.quarantine.empty() && is_the_launch) {
    promise.quarantined = std::exchange(promise.quarantined_before, 0);
  }
}

void Promises::Quarantined(const std::string& daemon, const std::string& job, int run) {
  promises_[{daemon, job}].quarantined = run;
}

bool Promises::IsPaused(const std::string& daemon, const std::string& job) const {
  const auto found = promises_.find({daemon, job});
  return found != promises_.end() && found->second.paused;
}

void Promises::SecondDaemon(const std::string& job) {
  disputed_.insert(job);
  ever_disputed_.insert(job);
}

void Promises::StoreReplaced(const std::string& daemon) {
  for (auto& [key, promise] : promises_) {
    if (key.first != daemon) continue;
    const std::string& job = key.second;
    promise.owner = 0;
    SecondDaemon(job);
    if (std::exchange(promise.paused, false)) {
      promise.paused_before = ranks_carry_(job, [](const auto& memory) { return memory.paused; });
      if (!promise.paused_before) context_.Count("pause_lost");
    }
    const int quarantined = std::exchange(promise.quarantined, 0);
    if (quarantined != 0 &&
        ranks_carry_(job, [](const auto& memory) { return !memory.quarantine.empty(); })) {
      promise.quarantined_before = quarantined;
    }
  }
}

void Promises::OlderEnded(const std::string& job) { disputed_.erase(job); }

void Promises::Forgotten(const std::string& job) {
  for (auto& [key, promise] : promises_) {
    if (key.second == job) promise = {};
  }
}

}  // namespace eplb::simulation
