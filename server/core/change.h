// What an operator asks of a job, and the answer.
#ifndef EPLB_SERVER_CORE_CHANGE_H_
#define EPLB_SERVER_CORE_CHANGE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/statusor.h"

#include "placement/placement.h"
#include "server/core/settings.h"

namespace eplb::core {

struct Rebalance {
  bool force = false;  // without asking whether it pays
};
struct Pause {};
struct Resume {};
struct Rollback {
  std::optional<int64_t> to_version = std::nullopt;
  // What the store has for Core::RollbackTarget, read by the caller just before.
  absl::StatusOr<Placement> placement = absl::NotFoundError("it was not looked up");
};
struct SetPolicy {
  SettingsPatch settings;
};
struct ForgetJob {};  // refused while a rank is connected
using Verb = std::variant<Rebalance, Pause, Resume, Rollback, SetPolicy, ForgetJob>;

struct Change {
  int64_t ticket = 0;  // of the caller; the Reply carries it
  std::string job;
  std::string request_id;
  std::optional<int64_t> expect_version;
  std::string comment;
  std::string actor;  // the identity of the caller, as the audit log shows it
  Verb verb;
};

struct ChangeOutcome {
  int64_t version = 0;  // in force
  std::string state;    // of the job, after the change
  std::string outcome;  // one sentence
  // Of SetPolicy: the settings that it changed, "min_gain=0.05", as they were and as they are in
  // force.
  std::string before = {};
  std::string after = {};
};

// A change that was done: its id is never used again.
struct DoneRequest {
  std::string request_id;
  std::string outcome;

  friend bool operator==(const DoneRequest&, const DoneRequest&) = default;
};
inline constexpr int32_t kMaxDoneRequests = 1024;  // remembered per job

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_CHANGE_H_
