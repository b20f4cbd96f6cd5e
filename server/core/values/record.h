// Records of a job: what is stored, and changes by operators. Decisions, ends of runs and events
// are the messages that show them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "placement/digest.h"
#include "placement/load_history.h"
#include "placement/placement.h"
#include "proto/wire/messages.h"
#include "proto/wire/settings.h"

#include "eplb/v1/query.pb.h"

namespace eplb::core {

inline constexpr int32_t kMaxPlans = 1000;  // decisions that are kept per job
inline constexpr int32_t kTimedPlans = 64;  // newest decisions, whose chunks have times
inline constexpr int32_t kTimedRanks = 16;  // ranks in a chunk: the slowest to be PREPARED
inline constexpr absl::Time kNoTime = absl::UnixEpoch();

// A change that an operator asks for, and its answer.

struct Rebalance {
  bool force = false;  // without asking whether it pays
};
struct Pause {};
struct Resume {};
struct Rollback {
  std::optional<int64_t> to_version = std::nullopt;
  // Placement of Core::RollbackTarget in the store, read by the caller just before.
  absl::StatusOr<Placement> placement = absl::NotFoundError("it was not looked up");
};
struct SetPolicy {
  wire::SettingsPatch settings;
};
struct ForgetJob {};  // refused while a rank is connected
using Verb = std::variant<Rebalance, Pause, Resume, Rollback, SetPolicy, ForgetJob>;

struct Change {
  int64_t ticket = 0;  // number of the caller; the Reply carries it
  std::string job;
  std::string request_id;
  std::optional<int64_t> expect_version;
  std::string comment;
  std::string actor;  // the identity of the caller, as the audit log shows it
  Verb verb;
  bool preview = false;  // say what it would do, and do nothing
};

struct ChangeOutcome {
  int64_t version = 0;                             // current placement
  v1::JobState state = v1::JOB_STATE_UNSPECIFIED;  // state of the job after the change
  std::string outcome;                             // one sentence
  // Settings that SetPolicy changed, "min_gain=0.05": before the change, and now.
  std::string before = {};
  std::string after = {};
  // The placement that an engine is to run as `version`; null: the current one stays.
  std::shared_ptr<const Placement> placement = nullptr;
};

// A change that was done: its id is never used again.
struct DoneRequest {
  std::string request_id;
  std::string outcome;

  friend bool operator==(const DoneRequest&, const DoneRequest&) = default;
};
inline constexpr int32_t kMaxDoneRequests = 1024;  // remembered per job

// A version that a job ran.
struct RanVersion {
  int64_t version = 0;
  Digest digest;

  friend bool operator==(const RanVersion&, const RanVersion&) = default;
};

// State of a job that a restart must not lose.
struct StoredJob {
  std::string job;
  int64_t version = 0;       // version of `placement`
  int64_t next_version = 1;  // no proposal below this was ever sent
  // The newest one known to run; none of a job that was stopped before its ranks said what they
  // run.
  std::optional<Placement> placement;
  wire::JobMemory memory = {};  // settings by operators, and the account of the current run
  std::optional<v1::RunEnd> end = std::nullopt;  // end of its newest run; none while that lives
  // To write: the change that this write is part of. Not read.
  std::optional<DoneRequest> done = std::nullopt;
  // Requests and what follows as read, oldest first; empty in a record to write.
  std::vector<DoneRequest> requests = {};
  std::vector<v1::Plan> plans = {};
  std::vector<RanVersion> history = {};  // placements that are kept
  std::vector<TypicalLoad> typical_loads = {};
  std::optional<v1::Window> newest_window = std::nullopt;  // only its figures are kept
};

}  // namespace eplb::core
