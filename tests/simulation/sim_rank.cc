#include "tests/simulation/sim_rank.h"

#include <algorithm>
#include <utility>

#include "client/session/connection.h"

namespace eplb::simulation {
namespace {

constexpr int64_t kMaxWindowSteps = 200;
constexpr double kFailedTransfer = 0.05;
constexpr absl::Duration kWelcomeDeadline = absl::Seconds(10);
constexpr absl::Duration kAskLeaders = absl::Seconds(5);
constexpr int kTriesOfOneDaemon = 3;

Member MakeMember(const RankOptions& options) {
  return Member({.identity = options.identity,
                 .migration = {.weight_bytes = options.identity.weight_bytes},
                 .fits = [](const MigrationPlan&) { return absl::OkStatus(); }},
                options.running);
}

std::string Who(const wire::Hello& identity) {
  return absl::StrCat(identity.job, "/", identity.run_id, " rank ", identity.rank);
}

}  // namespace

SimRank::SimRank(RankOptions options)
    : options_(std::move(options)),
      context_(*options_.context),
      rank_(options_.identity.rank),
      running_(options_.running),
      member_(MakeMember(options_), kMaxWindowSteps,
              [this](const Proposal& proposal, int64_t) {
                const wire::Propose& propose = proposal.propose;
                Log(Kind::kPrepared, propose.version, propose.digest);
                options_.on_prepared(propose.version);
                if (propose.term < highest_term_) {
                  context_.Violation(Who(options_.identity), " is PREPARED for version ",
                                     propose.version, " of term ", propose.term,
                                     " after it was led with term ", highest_term_);
                }
              }),
      windows_(options_.identity.shape.num_layers, options_.identity.shape.num_experts,
               options_.identity.report_every, options_.identity.step + 1,
               options_.running.version),
      cadence_(options_.identity.vote_every, options_.identity.step + 1),
      step_(options_.identity.step),
      highest_version_(options_.running.version) {}

void SimRank::Start() {
  const int64_t last = step_++;
  Log(Kind::kStart, running_.version, running_.digest);
  step_ = last;
  RunStep();
  Connect();
}

void SimRank::Kill() {
  if (!alive_) return;
  alive_ = false;
  FlushSteps();
  options_.collective->Break();
  if (stream_ != nullptr)
    stream_->DropRank(context_.Between(absl::ZeroDuration(), absl::Seconds(3)));
  stream_ = nullptr;
}

void SimRank::Finish() {
  if (!trains()) return;
  finished_ = true;
  FlushSteps();
  Log(Kind::kStop, 0, {});
  ended_ = true;
  member_.SayGoodbye({.reason = "finished"});
  Pump();
}

void SimRank::CutStream() {
  if (stream_ == nullptr) return;
  stream_->Cut(context_.Between(absl::ZeroDuration(), absl::Seconds(40)),
               context_.Between(absl::ZeroDuration(), absl::Seconds(40)));
}

// ---- training thread ----

void SimRank::RunStep() {
  absl::Duration takes = context_.Between(absl::Milliseconds(900), absl::Milliseconds(1100));
  if (hangs_until_ > context_.now()) takes += hangs_until_ - context_.now();
  context_.After(takes, [this] {
    if (!trains()) return;
    ++step_;
    Boundary();
  });
}

void SimRank::Boundary() {
  if (!first_logged_step_) first_logged_step_ = step_;
  options_.on_step(step_, running_.version);
  const LoadMatrix load = options_.load(step_);
  for (int32_t layer = 0; layer < load.rows(); ++layer) {
    (void)windows_.Record(layer, {load.row(layer).data(), static_cast<size_t>(load.cols())});
  }
  std::optional<wire::LoadReport> window = windows_.EndStep(step_);
  if (!options_.reports) window.reset();
  windows_.SetReportInterval(member_.FinishStep(step_, std::move(window), windows_.report_every()));
  Pump();
  if (cadence_.VotesAt(step_)) {
    Vote();
  } else {
    RunStep();
  }
}

void SimRank::Vote() {
  FlushSteps();
  const VoteSnapshot snapshot = member_.Enter();
  Collective::Values mine(snapshot.values.begin(), snapshot.values.end());
  mine.push_back(cadence_.Wants(step_, member_.knows_proposal(), /*has_daemon=*/true,
                                windows_.report_every()));
  options_.collective->AllReduceMin(
      rank_, std::move(mine), [this, snapshot](const absl::StatusOr<Collective::Values>& minimum) {
        if (trains()) OnVoted(snapshot, minimum);
      });
}

void SimRank::OnVoted(const VoteSnapshot& snapshot,
                      const absl::StatusOr<Collective::Values>& minimum) {
  if (!minimum.ok()) return End(minimum.status());
  cadence_.Voted(step_, minimum->back());
  const VoteDecision decision = member_.Decide(std::span(*minimum).first(snapshot.values.size()));
  if (decision.outcome == VoteOutcome::kDiverged) {
    context_.Violation("I1: ", Who(options_.identity), " runs another placement than others");
    return End(absl::DataLossError("the ranks run different placements"));
  }
  const bool agreed = decision.outcome == VoteOutcome::kRunChunk;
  if (snapshot.proposal != nullptr) {
    const wire::Propose& propose = snapshot.proposal->propose;
    Log(Kind::kVote, propose.version, propose.digest, agreed);
    context_.Count(agreed ? "vote_agreed" : "vote_not_agreed");
  }
  Pump();
  if (agreed) {
    RunChunk(decision.proposal);
  } else {
    RunStep();
  }
}

void SimRank::RunChunk(std::shared_ptr<const Proposal> proposal) {
  const absl::Duration takes = context_.Between(absl::Milliseconds(10), absl::Seconds(2));
  context_.After(takes, [this, proposal = std::move(proposal)] {
    if (!trains()) return;
    const bool staged = !context_.faults || !context_.Chance(kFailedTransfer);
    const int64_t version = proposal->propose.version;
    options_.collective->AllReduceMin(
        rank_,
        {staged ? 1 : 0, version, -version,
         VoteCadence::WantsAfterSwitch(step_, proposal->propose, windows_.report_every())},
        [this, proposal](const absl::StatusOr<Collective::Values>& minimum) {
          if (trains()) OnStaged(proposal, minimum);
        });
  });
}

void SimRank::OnStaged(const std::shared_ptr<const Proposal>& proposal,
                       const absl::StatusOr<Collective::Values>& minimum) {
  if (!minimum.ok()) return End(minimum.status());
  const wire::Propose& propose = proposal->propose;
  if ((*minimum)[1] != propose.version || (*minimum)[2] != -propose.version) {
    context_.Violation("I5: the ranks staged different versions");
    return End(absl::DataLossError("the ranks staged different versions"));
  }
  if ((*minimum)[0] == 1) {
    running_ = {propose.version, propose.digest, proposal->target};
    windows_.Switched(step_, propose.version);
    cadence_.Voted(step_, (*minimum)[3]);
    cadence_.Switched(step_, propose);
    Log(Kind::kCommit, propose.version, propose.digest);
    options_.on_running(step_ + 1, running_);
    context_.Count("rank_committed");
    member_.OnApplied(0, 0);
  } else {
    cadence_.Voted(step_, 1);
    Log(Kind::kDrop, propose.version, propose.digest);
    context_.Count("rank_dropped");
    member_.OnDropped("a transfer failed");
  }
  Pump();
  RunStep();
}

void SimRank::End(const absl::Status& why) {
  FlushSteps();
  Log(Kind::kStop, 0, {});
  ended_ = true;
  context_.Count("rank_ended");
  context_.Trace(Who(options_.identity), " ends: ", why.ToString());
  member_.OnEnded(std::string(why.message()), {});
  Pump();
  options_.on_ended();
}

void SimRank::Log(Kind kind, int64_t version, const Digest& digest, bool passed) {
  HistoryRecord record;
  record.kind = kind;
  record.rank = RankId{rank_};
  record.run_id = options_.identity.run_id;
  record.step = step_;
  record.version = version;
  record.digest = digest;
  record.passed = passed;
  options_.log->push_back(std::move(record));
}

void SimRank::FlushSteps() {
  if (!first_logged_step_) return;
  Log(Kind::kStep, running_.version, running_.digest);
  options_.log->back().step = *first_logged_step_;
  options_.log->back().last_step = step_;
  first_logged_step_.reset();
}

// ---- session thread ----

void SimRank::Connect() {
  if (!alive_ || said_goodbye_) return;
  stream_ = options_.connect(failures_ < kTriesOfOneDaemon ? daemon_ : -1);
  if (stream_ == nullptr) {
    Retry(false);
    welcomed_ = false;
    return;
  }
  welcomed_ = false;
  drained_ = false;
  half_closed_ = false;
  stream_->rank.on_down = [this](const wire::DownMessage& message) { OnDown(message); };
  stream_->rank.on_closed = [this](const absl::Status& status) { OnClosed(status); };
  stream_->Up(member_.Connect());
  context_.After(kWelcomeDeadline, [this, attempt = ++attempt_] {
    if (attempt != attempt_ || welcomed_ || stream_ == nullptr) return;
    stream_->DropRank(context_.Between(absl::ZeroDuration(), absl::Seconds(1)));
    stream_ = nullptr;
    Retry(false);
  });
}

// Acts as client/session: a rank leaves its daemon for the one with the highest term.
void SimRank::AskLeaders() {
  context_.After(context_.Between(kAskLeaders, 2 * kAskLeaders), [this, attempt = attempt_] {
    if (attempt != attempt_ || stream_ == nullptr || half_closed_ || !alive_) return;
    const std::optional<Leader> leader = options_.find_leader(options_.identity.run_id);
    if (leader && leader->IsAhead(led_by_)) {
      MoveTo(*leader);
    } else {
      AskLeaders();
    }
  });
}

void SimRank::MoveTo(const Leader& leader) {
  context_.Count("rank_moved");
  context_.Trace(Who(options_.identity), " moves to daemon ", leader.daemon, " of term ",
                 leader.term);
  stream_->Up(wire::Moved{leader.term, absl::StrCat("daemon-", leader.daemon)});
  stream_->CloseUp(absl::OkStatus());
  stream_->rank = {};
  stream_ = nullptr;
  ++attempt_;
  daemon_ = leader.daemon;
  failures_ = 0;
  Connect();
}

void SimRank::Retry(bool refused) {
  const BackoffOptions backoff;
  failures_ = welcomed_ ? 0 : failures_ + 1;
  const double uniform = context_.Below(1000) / 1000.0;
  context_.After(
      refused ? backoff.longest * (0.5 + uniform / 2) : BackoffDelay(backoff, failures_, uniform),
      [this] { Connect(); });
}

void SimRank::OnClosed(const absl::Status& status) {
  stream_ = nullptr;
  ++attempt_;
  if (!alive_) return;
  Retry(absl::IsAlreadyExists(status) || absl::IsFailedPrecondition(status) ||
        absl::IsInvalidArgument(status));
}

void SimRank::OnDown(const wire::DownMessage& message) {
  if (const auto* welcome = std::get_if<wire::Welcome>(&message)) {
    if (welcome->term < highest_term_) {
      context_.Violation(Who(options_.identity), " was welcomed with term ", welcome->term,
                         " after term ", highest_term_);
    }
    highest_term_ = std::max(highest_term_, welcome->term);
    led_by_ = {welcome->term, stream_->to};
    welcomed_ = true;
    AskLeaders();
  }
  if (std::holds_alternative<wire::Drain>(message)) drained_ = true;
  if (const auto* keep = std::get_if<wire::Keep>(&message)) kept_ = *keep;
  if (const auto* propose = std::get_if<wire::Propose>(&message)) {
    highest_version_ = std::max(highest_version_, propose->version);
  }
  member_.OnDown(message);
  Pump();
}

void SimRank::Pump() {
  if (stream_ == nullptr || !welcomed_ || !alive_ || half_closed_) return;
  while (!said_goodbye_) {
    std::optional<wire::UpMessage> message = member_.Next(/*with_windows=*/!drained_);
    if (!message) break;
    if (auto* ready = std::get_if<wire::Prepared>(&*message); ready != nullptr && spoil_plan_) {
      spoil_plan_ = false;
      ready->plan_hash.bytes[0] ^= 1;
      context_.Count("plan_spoiled");
    }
    if (const auto* nack = std::get_if<wire::Nack>(&*message)) {
      context_.Count(absl::StrCat("nack_", static_cast<int>(nack->code)));
    }
    said_goodbye_ = std::holds_alternative<wire::Goodbye>(*message);
    context_.Trace(Who(options_.identity), " says message ", message->index());
    stream_->Up(*std::move(message));
  }
  half_closed_ = said_goodbye_ || drained_;
  if (half_closed_) stream_->CloseUp(absl::OkStatus());
}

}  // namespace eplb::simulation
