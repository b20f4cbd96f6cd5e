// A rank of the simulated trainer: the real SharedMember, a session as client/session keeps one,
// and steps with boundaries as client/boundary.cc makes them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/run_log/history.h"
#include "client/session/load_windows.h"
#include "client/session/shared_member.h"
#include "client/vote_cadence.h"
#include "tests/simulation/collective.h"
#include "tests/simulation/context.h"
#include "tests/simulation/stream.h"

namespace eplb::simulation {

// A daemon that leads a run, and its place in the ranks' list. Of equal terms the first one in
// the list leads.
struct Leader {
  int64_t term = 0;
  int daemon = 0;
  bool IsAhead(const Leader& other) const {
    return term > other.term || (term == other.term && daemon < other.daemon);
  }
};

// Parts of its job that a rank needs. The pointers outlive it.
struct RankOptions {
  Context* context = nullptr;
  Collective* collective = nullptr;
  wire::Hello identity;  // identity.step: the last step before this run
  RunningPlacement running;
  std::vector<HistoryRecord>* log = nullptr;
  // Opens a stream to this daemon, -1: to any; null when no daemon can be reached.
  std::function<Stream*(int daemon)> connect;
  // Answers of the daemons to GetLeader: the first daemon that leads this run and has a rank of it
  // connected.
  std::function<std::optional<Leader>(const std::string& run_id)> find_leader;
  std::function<LoadMatrix(int64_t step)> load;
  // A step ended that ran under this version.
  std::function<void(int64_t step, int64_t version)> on_step;
  std::function<void()> on_ended;
  std::function<void(int64_t version)> on_prepared;
  // This rank now runs it, from `first_step` on.
  std::function<void(int64_t first_step, const RunningPlacement&)> on_running;
  bool reports = true;
};

class SimRank {
 public:
  explicit SimRank(RankOptions options);

  void Start();
  void Kill();    // without a word
  void Finish();  // says Goodbye in order
  void Hang(absl::Duration duration) { hangs_until_ = context_.now() + duration; }
  void StopReporting() { options_.reports = false; }
  void CutStream();
  // The next PREPARED will claim another plan than the other ranks have.
  void SpoilNextPlan() { spoil_plan_ = true; }

  bool trains() const { return alive_ && !ended_; }
  const RunningPlacement& running() const { return running_; }
  int64_t step() const { return step_; }
  // The highest version that this process has heard of; 0 once it is dead.
  int64_t highest_version() const { return alive_ ? highest_version_ : 0; }
  // Returns the values that it repeats in every Hello.
  const wire::Keep& kept() const { return kept_; }

 private:
  using Kind = HistoryRecord::Kind;

  // ---- training thread ----
  void RunStep();
  void Boundary();
  void Vote();
  void OnVoted(const VoteSnapshot& snapshot, const absl::StatusOr<Collective::Values>& minimum);
  void RunChunk(std::shared_ptr<const Proposal> proposal);
  void OnStaged(const std::shared_ptr<const Proposal>& proposal,
                const absl::StatusOr<Collective::Values>& minimum);
  void End(const absl::Status& why);
  void Log(Kind kind, int64_t version, const Digest& digest, bool passed = false);
  void FlushSteps();

  // ---- session thread ----
  void Connect();
  void AskLeaders();
  void MoveTo(const Leader& leader);
  void Retry(bool refused);
  void OnDown(const wire::DownMessage& message);
  void OnClosed(const absl::Status& status);
  void Pump();

  RankOptions options_;
  Context& context_;
  const int rank_;
  RunningPlacement running_;
  SharedMember member_;
  LoadWindows windows_;
  VoteCadence cadence_;
  int64_t step_;
  std::optional<int64_t> first_logged_step_;
  bool alive_ = true;
  bool ended_ = false;
  bool finished_ = false;
  bool spoil_plan_ = false;
  absl::Time hangs_until_ = absl::InfinitePast();
  int64_t highest_term_ = 0;
  int64_t highest_version_ = 0;
  wire::Keep kept_;

  Stream* stream_ = nullptr;
  int64_t attempt_ = 0;
  int failures_ = 0;
  int daemon_ = -1;  // to go to first
  Leader led_by_;    // the daemon that it is connected to, as it welcomed this rank
  bool welcomed_ = false;
  bool drained_ = false;
  bool half_closed_ = false;
  bool said_goodbye_ = false;
};

}  // namespace eplb::simulation
