// A rank's side of the protocol: a deterministic library without gRPC, threads, clock or I/O.
//
//   RUNNING(v)  --Propose, checked-->  PREPARED(v')  --vote agrees, second vote ok-->  RUNNING(v')
//                                          \--Cancel, or second vote no-->         RUNNING(v)
//
// The ranks' own vote is the commit point: from Enter to the outcome, what the vote is about is
// frozen whatever the daemon says meanwhile.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "placement/migration_plan.h"
#include "placement/placement.h"
#include "proto/wire/messages.h"

namespace eplb {

// Placement that a rank runs.
struct RunningPlacement {
  int64_t version = 0;
  Digest digest;
  std::shared_ptr<const Placement> placement;
};

// A checked proposal with its plan. Immutable.
struct Proposal {
  wire::Propose propose;  // message as received; `digest` and `version` are those of `target`
  std::shared_ptr<const Placement> target;
  MigrationPlan plan;
};

// Values of one vote, {v, -v, d, -d, r, -r}, and the proposal that v and d stand for.
struct VoteSnapshot {
  std::array<int64_t, 6> values{};
  std::shared_ptr<const Proposal> proposal;  // null when not PREPARED: v and d are 0
};

enum class VoteOutcome {
  kNothing,   // no chunk at this boundary
  kRunChunk,  // every rank runs this proposal now
  kDiverged,  // the ranks run different placements
};

struct VoteDecision {
  VoteOutcome outcome = VoteOutcome::kNothing;
  std::shared_ptr<const Proposal> proposal = nullptr;  // the frozen proposal if kRunChunk
};

struct MemberOptions {
  // Job, run, nonce, rank, shape and sizes, and the last finished step (-1: none); the rest
  // of Hello is filled in from the state.
  wire::Hello identity;
  MigrationOptions migration;
  // Ok when staging holds the plan's rows. Called by Prepare; thread-safe.
  std::function<absl::Status(const MigrationPlan&)> fits;
};

// The slow part of taking a proposal in, a pure function: the target, its digest, its plan.
// returns: the checked proposal, or the Nack that answers it.
using Prepared = std::variant<std::shared_ptr<const Proposal>, wire::Nack>;
Prepared PrepareProposal(const MemberOptions& options, const RunningPlacement& running,
                         const wire::Propose& propose);

// Threads: not safe; see SharedMember. Memory: one running and one PREPARED placement.
class Member {
 public:
  Member(MemberOptions options, RunningPlacement running);

  // The answers to one message of the daemon. Idempotent: a message that comes twice is answered
  // twice. A Propose runs through Begin, PrepareProposal and Finish.
  std::vector<wire::UpMessage> OnDown(const wire::DownMessage& message);

  // A Propose in three parts, so that the slow middle one needs no lock. Begin: the answer when the
  // state alone gives it, else nothing. Finish: Ready or Nack.
  std::optional<wire::UpMessage> Begin(const wire::Propose& propose);
  wire::UpMessage Finish(Prepared prepared);

  // The truth about this rank, the first message of every connection.
  wire::Hello MakeHello() const;

  // The training thread finished a step.
  void OnStep(int64_t step) { step_ = step; }
  // The length of its load windows from now on, for Hello.
  void SetReportEvery(int32_t report_every) { report_every_ = report_every; }

  // A vote begins: what PREPARED means for it is frozen until Decide, and on kRunChunk until one of
  // OnApplied, OnDropped and OnEnded. REQUIRES: no vote is open.
  VoteSnapshot Enter();
  // Returns the vote of a rank that is PREPARED for nothing. running: VoteBits of the running
  // digest.
  static VoteSnapshot NothingPrepared(int64_t running);
  // minimum: the element-wise minimum of all ranks' values. Agreement of v and d on all ranks is
  // equality with this rank's own values and not 0.
  static VoteOutcome OutcomeOf(const VoteSnapshot& own, std::span<const int64_t> minimum);
  // Acts on the outcome. REQUIRES: a vote is open.
  VoteDecision Decide(std::span<const int64_t> minimum, std::vector<wire::UpMessage>& messages);
  // Records that the transport is no longer the identity's, and why. Applied reports it.
  void SetTransport(std::string_view name, std::string_view fallback_reason);
  // The chunk is in the slots: its target runs from step + 1 on.
  wire::UpMessage OnApplied(int64_t received_bytes, double pause_seconds);
  // The second vote said no: the old placement runs on.
  wire::UpMessage OnDropped(std::string_view reason);
  // A vote had no result, or ranks diverged: the run is over. Nothing is answered any more.
  wire::UpMessage OnEnded(std::string_view reason, std::span<const RankId> missing_ranks);

  const MemberOptions& options() const { return options_; }
  const RunningPlacement& running() const { return running_; }
  // The proposal this rank is PREPARED for, or null.
  const std::shared_ptr<const Proposal>& prepared() const { return prepared_; }
  int64_t step() const { return step_; }
  bool ended() const { return ended_; }

 private:
  friend struct MemberPeer;  // reads the state in the tests that explore

  std::vector<wire::UpMessage> OnCancel(const wire::Cancel& cancel);
  std::vector<wire::UpMessage> OnNeedPlacement(const wire::NeedPlacement& need) const;
  int64_t FinishedStep() const { return std::max<int64_t>(step_, 0); }  // step number in messages
  wire::Failed MakeFailed(int64_t version, wire::FailedCode code, std::string detail) const;

  MemberOptions options_;
  RunningPlacement running_;
  std::shared_ptr<const Proposal> prepared_;
  // From Enter to the outcome; `frozen_.proposal` is null or equals prepared_ meanwhile.
  bool in_vote_ = false;
  VoteSnapshot frozen_;
  std::optional<wire::Cancel> cancel_;  // Cancel of the frozen proposal, answered by the outcome
  wire::Applied last_applied_;          // how running_ came about
  int64_t highest_term_ = 0;            // ever seen
  int64_t highest_version_ = 0;         // ever seen
  wire::Keep keep_;                     // for the daemons to come
  int64_t step_ = 0;                    // last finished, -1 before any
  int32_t report_every_ = 0;            // steps in a load window, as last set
  bool transport_changed_ = false;
  bool ended_ = false;
};

}  // namespace eplb
