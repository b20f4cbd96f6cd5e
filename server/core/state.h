// What the core knows: jobs, their incarnations and ranks, and the proposal in flight. Plain data;
// the rules are in the files beside it.
#ifndef EPLB_SERVER_CORE_STATE_H_
#define EPLB_SERVER_CORE_STATE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "placement/digest.h"
#include "placement/migration_plan.h"
#include "placement/placement.h"
#include "placement/topology.h"
#include "placement/track_record.h"
#include "server/core/core.h"
#include "server/core/windows.h"

namespace eplb::core {

enum class Phase { kHeld, kIdle, kSolving, kPreparing, kResolving, kRetracting, kQuarantine };

// What a rank has said about the proposal in flight. kFailed: it does not hold it and never will.
enum class Answer { kNone, kReady, kApplied, kFailed };

struct Rank {
  bool said_hello = false;
  bool finished = false;  // said Goodbye without an error
  uint64_t nonce = 0;
  SessionId session = 0;  // 0 = not connected
  absl::Time away_since = absl::InfiniteFuture();
  int64_t running_version = 0;
  Digest running_digest;
  int64_t ready_version = 0;  // 0 = none
  int64_t step = 0;
  int64_t staging_rows = 0;
  Answer answer = Answer::kNone;
};

// kLost: a rank was away too long; it lives again when all its processes are back. kFinal: never.
enum class Ending { kLive, kLost, kFinal };

// One launch of a job.
struct Incarnation {
  explicit Incarnation(const Topology& frame) : topology(frame) {}

  std::string name;
  TopologyOptions shape;
  Topology topology;
  int32_t vote_every = 0;
  int32_t report_every = 0;
  MigrationOptions migration;
  std::vector<Rank> ranks;  // [world_size]
  int32_t num_hello = 0;
  int32_t num_connected = 0;
  int32_t num_finished = 0;
  Ending ending = Ending::kLive;
  std::string end_reason;

  int32_t world_size() const { return static_cast<int32_t>(ranks.size()); }
};

// The newest placement known to run.
struct Known {
  int64_t version = 0;
  Digest digest;
  std::shared_ptr<const Placement> placement;
};

// What the store holds of a job, to write only what changed.
struct StoreStamp {
  int64_t version = 0;
  int64_t next_version = 0;
  Digest digest;
  friend bool operator==(const StoreStamp&, const StoreStamp&) = default;
};

// The chunk that the ranks were asked to switch to.
struct Proposal {
  wire::Propose message;
  std::shared_ptr<const Placement> after;
  int64_t turn = 0;  // the decision that proposed it
  int32_t num_ready = 0;
  int32_t num_applied = 0;
  int32_t num_failed = 0;
  std::optional<Digest> plan_hash;      // of the first rank that was READY
  std::optional<int64_t> applied_step;  // of the first rank that reported Applied
  int64_t received_bytes = 0;           // summed over ranks
  double longest_pause_seconds = 0;
  std::string withdrawal;  // why it was retracted, or what the first failed transfer said
};

// The chunks of a decision that are still to be proposed.
struct Chunks {
  std::deque<Chunk> rest;
  int32_t total = 0;
  std::string reason;
  int64_t decided_first_step = 0;  // the steps whose load was decided on
  int64_t decided_last_step = 0;
};

struct Solving {
  int64_t id = 0;  // 0 = nothing is being solved
  std::shared_ptr<const Load> load;
  int64_t first_step = 0;
  int64_t last_step = 0;
};

// Skips 1, 2, 4, ... decisions after proposals that did not commit.
struct BackOff {
  int32_t length = 0;
  int32_t to_skip = 0;
};

// Which rank was asked for the body of the running placement.
struct Asked {
  int32_t rank = -1;
  SessionId session = 0;  // 0 = nobody was asked
  absl::Time at = absl::InfinitePast();
};

// An incarnation that is over. One that failed or finished never comes back. One that another
// replaced may, once no rank of that other is connected: late Hellos of dead processes can make an
// older launch replace a newer one.
struct Gone {
  std::string name;
  bool replaced = false;
};

struct Job {
  std::string name;
  Phase phase = Phase::kHeld;
  absl::Time phase_since = absl::InfinitePast();
  absl::Time nudged_at = absl::InfinitePast();  // when the deadline of this phase was last acted on
  bool stuck_recorded = false;

  std::optional<Incarnation> current;
  std::optional<Incarnation> candidate;  // gathers while `current` is live
  std::deque<Gone> gone;                 // incarnations that are over, newest last

  std::optional<Known> known;
  std::optional<StoreStamp> stored;
  int64_t next_version = 1;
  absl::Status store_error;
  absl::Time store_attempt = absl::InfinitePast();

  Windows windows;
  TrackRecord record;  // of this incarnation; kept when the costs are priced
  std::optional<int64_t> last_decision_step;
  BackOff back_off;
  Solving solving;
  Chunks chunks;
  std::optional<Proposal> proposal;
  Asked asked;

  int64_t step = 0;  // highest step of any rank of `current`
  int64_t commits = 0;
  std::string last_reason;
};

// Whose session this is.
struct Seat {
  std::string job;
  std::string incarnation;
  int32_t rank = 0;
};

struct State {
  Config config;
  int64_t term = 0;
  bool term_stored = true;
  bool draining = false;
  int64_t turn = 0;  // decisions made so far
  int64_t last_solve_id = 0;
  SessionId last_hello = 0;         // welcomed by the decision before this one, or 0
  std::string last_stored_job;      // written by the decision before this one, or empty
  std::map<SessionId, Seat> seats;  // sessions that said Hello; ordered, so that effects are too
  std::map<std::string, Job> jobs;
};

}  // namespace eplb::core

#endif  // EPLB_SERVER_CORE_STATE_H_
