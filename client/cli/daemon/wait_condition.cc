#include "client/cli/daemon/wait_condition.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "client/cli/daemon/job_text.h"
#include "placement/suggestion.h"

#include "eplb/v1/query.pb.h"

namespace eplb::cli {
namespace {

constexpr char kForms[] =
    "connected, finished, ended, state=NAME, version>=N, step>=N or balanced>=X";

const std::vector<std::string>& States() {
  static const auto* const states =
      new std::vector<std::string>{"HELD",       "IDLE",       "SOLVING",  "PREPARING", "RESOLVING",
                                   "RETRACTING", "QUARANTINE", "FINISHED", "FAILED",    "LOST"};
  return *states;
}

absl::Status Wrong(const std::string& text, const std::string& expected) {
  return absl::InvalidArgumentError(absl::StrCat("--for is \"", text, "\", expected ", expected));
}

// "version>=12" in two; false without the sign.
bool Split(const std::string& text, const std::string& sign, std::string& name,
           std::string& value) {
  const size_t at = text.find(sign);
  if (at == std::string::npos) return false;
  name = text.substr(0, at);
  value = text.substr(at + sign.size());
  return true;
}

}  // namespace

absl::StatusOr<WaitCondition> WaitCondition::Parse(const std::string& text) {
  WaitCondition condition;
  condition.text_ = text;
  std::string name;
  std::string value;
  if (text == "connected" || text == "finished" || text == "ended") {
    condition.kind_ = text == "connected"  ? Kind::kConnected
                      : text == "finished" ? Kind::kFinished
                                           : Kind::kEnded;
    return condition;
  }
  if (Split(text, ">=", name, value)) {
    if (name == "balanced") {
      condition.kind_ = Kind::kBalanced;
      const bool read = absl::SimpleAtod(value, &condition.ratio_) && condition.ratio_ > 0 &&
                        condition.ratio_ <= 1;
      return read ? absl::StatusOr<WaitCondition>(condition)
                  : Wrong(text, "a balancedness above 0, at most 1, e.g. balanced>=0.9");
    }
    if (name != "version" && name != "step") return Wrong(text, kForms);
    condition.kind_ = name == "version" ? Kind::kVersion : Kind::kStep;
    if (absl::SimpleAtoi(value, &condition.number_)) return condition;
    return Wrong(text, absl::StrCat("a whole number, e.g. ", name, ">=12"));
  }
  if (!Split(text, "=", name, value) || name != "state") return Wrong(text, kForms);
  for (const std::string& state : States()) {
    if (state != value) continue;
    condition.kind_ = Kind::kState;
    condition.state_ = value;
    return condition;
  }
  return Wrong(text, absl::StrCat("one of the states ", absl::StrJoin(States(), ", "),
                                  Suggestion(value, States())));
}

bool WaitCondition::IsMet(const v1::JobStatus& job) const {
  switch (kind_) {
    case Kind::kConnected:
      return job.world_size() > 0 && job.connected_ranks() == job.world_size();
    case Kind::kFinished:
      return job.ending() == "finished" || job.state() == "FINISHED";
    case Kind::kEnded:
      return HasEnded(job);
    case Kind::kState:
      return job.state() == state_;
    case Kind::kVersion:
      return job.version() >= number_;
    case Kind::kStep:
      return job.step() >= number_;
    case Kind::kBalanced:
      return job.balancedness() >= ratio_;
  }
  return false;
}

bool WaitCondition::IsOfEndedRun() const {
  return kind_ == Kind::kFinished || kind_ == Kind::kEnded ||
         (kind_ == Kind::kState && (state_ == "FINISHED" || state_ == "FAILED"));
}

WaitCondition::Answer WaitCondition::Ask(const v1::JobStatus& job) const {
  if (IsMet(job)) return Answer::kMet;
  return HasEnded(job) && IsOfEndedRun() ? Answer::kNever : Answer::kNotYet;
}

}  // namespace eplb::cli
