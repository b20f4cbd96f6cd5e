// Records of a job: decisions, ends of runs, changes by operators.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "placement/digest.h"
#include "placement/evaluate.h"
#include "placement/placement.h"
#include "proto/wire/messages.h"
#include "proto/wire/settings.h"

namespace eplb::core {

// One decision of a job and what became of it.

enum class PlanResult {
  kKept,       // the current placement was better, or good enough
  kObserved,   // would have been proposed, but the job is only observed
  kProposed,   // in flight
  kCommitted,  // every chunk
  kWithdrawn,  // no chunk
  kPartial,    // the first chunks
  kFailed,     // the policy gave no usable placement
};
inline constexpr int kNumPlanResults = 7;
inline constexpr int32_t kMaxPlans = 1000;  // kept per job

absl::string_view PlanResultName(PlanResult result);  // "kept", ..

// Bytes and seconds of a switch that no rank reported to this daemon: the daemon was not there, or
// a rank came back later and said only what it runs.
inline constexpr int kNotMeasured = -1;

// Back-test of one candidate, as v1.TriedCandidate.
struct TriedCandidate {
  std::string name;
  bool in_use = false;
  int64_t windows = 0;
  double balancedness = 0;                           // 0: no window had tokens
  std::optional<double> net_seconds = std::nullopt;  // absent before a step was timed
  std::optional<double> realized = std::nullopt;     // absent before it has predicted a gain

  friend bool operator==(const TriedCandidate&, const TriedCandidate&) = default;
};

// When the daemon saw what of a decision, as v1.PlanTimes.
inline constexpr absl::Time kNoTime = absl::UnixEpoch();
inline constexpr int32_t kTimedRanks = 16;  // ranks in a chunk: the slowest to be PREPARED
inline constexpr int32_t kTimedPlans = 64;  // the newest of a job whose chunks have times

struct RankTimes {
  int32_t rank = 0;
  absl::Time prepared_at = kNoTime;
  absl::Time applied_at = kNoTime;
  double pause_seconds = kNotMeasured;

  friend bool operator==(const RankTimes&, const RankTimes&) = default;
};

struct ChunkTimes {
  int64_t version = 0;
  int32_t num_layers = 0;
  absl::Time proposed_at = kNoTime;
  absl::Time prepared_at = kNoTime;  // every rank was
  absl::Time ended_at = kNoTime;     // committed or withdrawn
  bool committed = false;
  int32_t timed_ranks = 0;            // ranks whose PREPARED has a time
  std::vector<RankTimes> ranks = {};  // the slowest of them, slowest last; at most kTimedRanks
  int32_t longest_pause_rank = -1;    // -1: no rank said
  double longest_pause_seconds = kNotMeasured;

  friend bool operator==(const ChunkTimes&, const ChunkTimes&) = default;
};

struct PlanTimes {
  absl::Time window_began_at = kNoTime;
  absl::Time window_complete_at = kNoTime;
  absl::Time solve_began_at = kNoTime;
  std::vector<ChunkTimes> chunks = {};  // proposed chunks, oldest first

  friend bool operator==(const PlanTimes&, const PlanTimes&) = default;
};

struct Plan {
  int64_t plan = 0;  // rising within a job, from 1
  absl::Time decided_at = absl::UnixEpoch();
  std::string policy;
  PlanResult result = PlanResult::kKept;
  int64_t base_version = 0;        // current version when it was decided
  int64_t first_version = 0;       // first version of its chunks; 0 if nothing was proposed
  int64_t last_version = 0;        // committed; 0 when none was
  int64_t decided_first_step = 0;  // the steps whose load was decided on
  int64_t decided_last_step = 0;
  // Measured: of those steps' windows under the placements that they ran under, the mean; 0: not
  // known.
  double balancedness_before = 0;
  double balancedness_in_force = 0;  // computed: of base_version on that load; 0: not known
  // Predicted: of the first whole window under what the policy may change, +- prediction_error.
  // The error is absent until a prediction of the job was compared with what followed, and the
  // evidence, the number of such predictions, is absent where the figure is computed.
  std::optional<double> balancedness_predicted = std::nullopt;
  std::optional<double> prediction_error = std::nullopt;
  std::optional<int64_t> prediction_evidence = std::nullopt;
  SplitMode split =
      SplitMode::kEqual;  // split of the computed figures; with kBatch each window is a batch
  // Measured: of the first complete window all of whose steps ran under last_version, what was
  // predicted beside what followed. None before it, when another decision switched before it, or
  // where the ranks of a run that splits batches did not report what that gave.
  std::optional<double> balancedness_seen = std::nullopt;
  int64_t seen_first_step = 0;
  int64_t seen_last_step = 0;
  // Computed on that load: fall of the sum of the layers' peak loads, a fraction.
  std::optional<double> peak_fall = std::nullopt;
  // Predicted, over the horizon. Absent without prices.
  std::optional<double> net_gain_seconds = std::nullopt;
  // Predicted. Absent without prices, and before a switch was measured where prices are measured.
  std::optional<double> migration_seconds = std::nullopt;
  int64_t transfers = 0;       // proposed
  int64_t received_bytes = 0;  // by all ranks, or kNotMeasured
  int32_t num_chunks = 0;
  int32_t chunks_committed = 0;
  std::optional<double> solve_seconds = std::nullopt;  // absent if no solver ran
  // Propose to the last PREPARED, longest chunk. Absent before a chunk was committed.
  std::optional<double> prepare_seconds = std::nullopt;
  // Longest boundary of any rank, or kNotMeasured. It is shown once a chunk was committed.
  double pause_seconds = 0;
  int64_t switched_step = 0;  // step of the last chunk; 0 if there was none
  std::string reason;         // one sentence
  std::string asked_by;       // an identity, when an operator asked for it
  std::vector<TriedCandidate> candidates =
      {};                // candidates of a policy that chooses; empty in a kept plan
  PlanTimes times = {};  // no decision reads them

  friend bool operator==(const Plan&, const Plan&) = default;
};

// How a run ended, as it is shown and stored.

enum class RunEnding {
  kFinished,  // every rank said so
  kFailed,    // a rank said that it failed
  kLost,      // a rank was away too long; the run goes on when all its ranks are back
};

struct RunEnd {
  RunEnding how = RunEnding::kFinished;
  std::string reason;  // one sentence, which names the rank that was lost or failed first
  absl::Time at = absl::UnixEpoch();
  std::string run_id;
  int32_t world_size = 0;
  int64_t step = 0;        // highest step of any rank
  bool elsewhere = false;  // lost to another daemon, with which its ranks continue

  friend bool operator==(const RunEnd&, const RunEnd&) = default;
};

// Activity of a job. In the last three its newest run has ended, as RunEnding.
enum class JobState {
  kRecovering,
  kIdle,
  kSolving,
  kPreparing,
  kVoting,
  kCancelling,
  kQuarantine,
  kFinished,
  kFailed,
  kLost,
};

absl::string_view JobStateName(JobState state);  // "RECOVERING", ..

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
  int64_t version = 0;                     // current placement
  JobState state = JobState::kRecovering;  // state of the job after the change
  std::string outcome;                     // one sentence
  // Settings that SetPolicy changed, "min_gain=0.05": before the change, and now.
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
  std::optional<RunEnd> end = std::nullopt;  // end of its newest run; none while that lives
  // To write: the change that this write is part of. Not read.
  std::optional<DoneRequest> done = std::nullopt;
  // Requests as read, oldest first; empty in a record to write.
  std::vector<DoneRequest> requests = {};
  std::vector<Plan> plans = {};
  std::vector<RanVersion> history = {};  // placements that are kept
};

// One line of the audit log.
struct JobEvent {
  std::string job;
  // run_started, run_ended, run_resumed, end_amended, taken_over, stepped_down, recovering,
  // released, version_reused, kept, observed, left_out, freeze_over, gpu_slow, gpu_recovered,
  // speeds_unused, proposed, nacked, cancelling, withdrawn, committed, pause_exceeded, quarantined,
  // stuck, stalled, stalled_over, not_counting, counting, report_ahead, window_incomplete,
  // window_complete_again, window_dropped, report_short, placements_differ, splits_differ,
  // store_failed, store_behind, expired, report_interval, vote_every_differs, memory_recalled,
  // unknown_job_paused; of operators: rebalance, pause, resume, rollback, set_policy, forget,
  // refused.
  std::string name;
  int64_t term = 0;  // term with which the daemon leads the job; in its log only
  int64_t version = 0;
  std::string reason;       // one sentence
  std::string actor = {};   // the identity of the operator; empty for the daemon itself
  std::string before = {};  // value before a change
  std::string after = {};
};

struct StoredEvent {
  int64_t sequence = 0;  // rising within the store
  absl::Time time;
  JobEvent event;
};

}  // namespace eplb::core
