// Client::StepBoundary: the vote, the chunk and the switch.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/client_impl.h"

namespace eplb {

absl::StatusOr<BoundaryResult> Client::Impl::StepBoundary(int64_t step, void* stream) {
  BoundaryResult result;
  result.version = running_.version;
  if (disabled_) return result;
  EPLB_RETURN_IF_ERROR(ended_);
  if (executor_ == nullptr) {
    return FailedPrecondition("StepBoundary was called before RegisterExperts");
  }
  if (step != next_step_) {
    return FailedPrecondition("StepBoundary of step ", step, ", expected ", next_step_);
  }
  EPLB_RETURN_IF_ERROR(CheckNotCarried("StepBoundary"));
  boundary_began_ = MonotonicNow();
  const bool votes = (step + 1) % options_.vote_every == 0;
  if (votes) JoinAhead();
  EPLB_RETURN_IF_ERROR(CheckStream(stream));
  stream_ = stream;
  ++next_step_;
  log_.AddStep(step, running_.version, running_.digest);
  std::optional<wire::LoadReport> window = EndCounts(step);
  windows_.SetReportInterval(member_->FinishStep(step, std::move(window), windows_.report_every()));
  if (votes) EPLB_RETURN_IF_ERROR(Vote(step, result));
  if (result.reason.empty()) result.reason = token_watch_.reason();
  const absl::Time ended = MonotonicNow();
  result.pause_seconds = absl::ToDoubleSeconds(ended - boundary_began_);
  WriteTimes(ended);
  return result;
}

std::optional<wire::LoadReport> Client::Impl::EndCounts(int64_t step) {
  const int32_t whole = windows_.report_every();  // length of the window that may end
  std::optional<wire::LoadReport> window = windows_.EndStep(step);
  if (session_ == nullptr || !reports_) return std::nullopt;
  if (!window) return window;
  const bool is_whole = window->last_step - window->first_step + 1 >= whole;
  if (token_watch_.EndWindow(*window, is_whole)) token_watch_log_.Log(token_watch_.reason());
  return window;
}

absl::Status Client::Impl::CheckStream(void* stream) const {
  if (rows_on_device_) {
    if (StagingRuns()) return absl::OkStatus();  // the queue is the thread's; no row moves here
    absl::Status checked = executor_->carrier().queue().CheckStream(stream);
    // Another error shows where rows move: the ranks vote on it there.
    return absl::IsFailedPrecondition(checked) ? checked : absl::OkStatus();
  }
  if (stream == nullptr) return absl::OkStatus();
  return FailedPrecondition(
      "stream must be null: the expert tensors are in host memory. Synchronize your stream before "
      "StepBoundary.");
}

double Client::Impl::SecondsInSwitch() const {
  return absl::ToDoubleSeconds(MonotonicNow() - switch_began_);
}

void Client::Impl::WriteTimes(absl::Time ended) {
  if (!timer_) return;
  timer_->SetTransport(transport());
  log_.WriteBoundary(timer_->Finish(ended));
  timer_.reset();
}

namespace {

// Adds the times of a Stage that succeeded.
void AddStaged(const Executor::Staged& staged, BoundaryTimer& timer) {
  if (staged.local_began != absl::InfinitePast()) {
    timer.AddSpan("local rows", staged.local_began, staged.local_ended);
  }
  for (const RoundTimes& round : staged.rounds) {
    const bool summed = round.checksum > absl::ZeroDuration();
    timer.AddRound({.round = round.round,
                    .began = round.began,
                    .ended = round.ended,
                    .sent_bytes = round.sent_bytes,
                    .received_bytes = round.received_bytes,
                    .checksum_micros = summed ? absl::ToInt64Microseconds(round.checksum) : -1});
  }
}

}  // namespace

absl::Status Client::Impl::Vote(int64_t step, BoundaryResult& result) {
  log_.FlushSteps();
  ++votes_;
  result.voted = true;
  result.reason = std::exchange(no_reason_, {});
  if (ahead_.has_value()) return FinishAhead(step, result);
  VoteSnapshot snapshot = member_->Enter();
  if (!result.reason.empty()) snapshot.values = Member::NothingPrepared(snapshot.values[4]).values;
  const Proposal* const target = snapshot.proposal.get();
  const bool timed = target != nullptr && log_.is_open();
  if (timed) timer_.emplace(step, target->propose.version, boundary_began_);
  const absl::Time began = timed ? MonotonicNow() : absl::InfinitePast();
  const absl::StatusOr<std::vector<int64_t>> minimum =
      control_->AllReduceMin(snapshot.values, options_.vote_deadline);
  if (timed) timer_->AddSpan("vote", began);
  if (!minimum.ok()) return End(step, minimum.status(), target);
  posts_before_vote_ = num_posts_;
  const VoteDecision decision = member_->Decide(*minimum);
  if (decision.outcome == VoteOutcome::kDiverged) {
    return End(step,
               DataLoss("after step ", step,
                        " the ranks run different placements, this rank version ", running_.version,
                        " ", running_.digest.Hex(), "; the run ends, restart it from a checkpoint"),
               target);
  }
  const bool agreed = decision.outcome == VoteOutcome::kRunChunk;
  if (target != nullptr) {
    log_.Write({.event = "vote",
                .step = step,
                .last_step = step,
                .version = target->propose.version,
                .digest = target->propose.digest,
                .ok = agreed,
                .reason = agreed                  ? ""
                          : result.reason.empty() ? "not all ranks are PREPARED for it"
                                                  : result.reason});
  }
  if (!agreed) return absl::OkStatus();
  if (staging_thread_ == nullptr) return RunChunk(step, *decision.proposal, result);
  BeginAhead(decision.proposal);
  return absl::OkStatus();
}

Executor::StageOptions Client::Impl::MakeStageOptions(absl::Time began) {
  return {.post_id = ++num_posts_,
          .deadline = began + options_.transfer_deadline,
          .begin_by = rows_on_device_ ? began + options_.vote_deadline : absl::InfinitePast(),
          .stream = stream_,
          .timed = timer_.has_value()};
}

absl::Status Client::Impl::RunChunk(int64_t step, const Proposal& proposal,
                                    BoundaryResult& result) {
  const absl::Time began = MonotonicNow();
  switch_began_ = began;
  const absl::StatusOr<Executor::Staged> staged =
      executor_->Stage(proposal.plan, MakeStageOptions(began));
  if (timer_) timer_->AddSpan("transfer", began);
  if (timer_ && staged.ok()) AddStaged(*staged, *timer_);
  return SecondVote(step, proposal, staged, result);
}

absl::Status Client::Impl::SecondVote(int64_t step, const Proposal& proposal,
                                      const absl::StatusOr<Executor::Staged>& staged,
                                      BoundaryResult& result) {
  if (!executor_->may_vote()) {
    return End(step, WritesGoOn(std::string(staged.status().message())), &proposal);
  }
  const int64_t version = proposal.propose.version;
  // The last one, of ranks that stage ahead: no row changed meanwhile.
  std::vector<int64_t> mine = {staged.ok() ? 1 : 0, version, -version,
                               executor_->is_whole() ? 1 : 0};
  if (staging_thread_ != nullptr) mine.push_back(ahead_promise_broken_ ? 0 : 1);
  const absl::Time second = MonotonicNow();
  const absl::StatusOr<std::vector<int64_t>> minimum =
      control_->AllReduceMin(mine, options_.vote_deadline);
  if (timer_) timer_->AddSpan("second vote", second);
  // Rows that were staged ahead had no vote before this one: it waits for the slowest rank.
  if (staging_thread_ != nullptr) switch_began_ += MonotonicNow() - second;
  if (!minimum.ok()) {
    executor_->Discard();
    return End(step, minimum.status(), &proposal);
  }
  posts_before_vote_ = num_posts_;
  if ((*minimum)[1] != version || (*minimum)[2] != -version) {
    executor_->Discard();
    return End(step, DataLoss("the ranks staged different versions"), &proposal);
  }
  if ((*minimum)[0] == 1) {
    result.sent_bytes = staged->sent_bytes;
    result.received_bytes = staged->received_bytes;
    return Commit(step, proposal, result);
  }
  result.reason =
      staged.ok() ? "the transfer failed on another rank" : std::string(staged.status().message());
  executor_->Discard(/*all_whole=*/(*minimum)[3] == 1);
  if (staging_thread_ != nullptr && minimum->back() == 0) GiveUpAhead(result.reason);
  return Drop(step, proposal, result);
}

absl::Status Client::Impl::Switch(std::span<const LayerId> layers, const Placement& target) {
  EPLB_RETURN_IF_ERROR(executor_->Commit(stream_));
  return route_tables_->Update(target, layers, stream_);
}

absl::Status Client::Impl::Commit(int64_t step, const Proposal& proposal, BoundaryResult& result) {
  const wire::Propose& propose = proposal.propose;
  std::vector<LayerId> layers;
  for (const LayerPlacement& layer : propose.layers) layers.push_back(layer.layer);
  const absl::Time began = MonotonicNow();
  const absl::Status switched = Switch(layers, *proposal.target);
  if (timer_) timer_->AddSpan("commit", began);
  if (!switched.ok()) {
    return End(step,
               DataLoss("after step ", step, " version ", propose.version,
                        " was agreed on, but its rows could not be put into their slots: ",
                        switched.message()),
               &proposal);
  }
  running_ = {.version = propose.version, .digest = propose.digest, .placement = proposal.target};
  Show(running_);
  windows_.Switched(step, propose.version);
  ++commits_;
  if (timer_) timer_->SetOutcome("committed");
  log_.Write({.event = "commit",
              .step = step,
              .last_step = step,
              .version = propose.version,
              .digest = propose.digest,
              .reason = propose.reason});
  WritePlacement(step + 1, &propose);
  result.switched = true;
  result.version = propose.version;
  result.decided_first_step = propose.decided_first_step;
  result.decided_last_step = propose.decided_last_step;
  result.decision = propose.decision;
  result.policy = propose.policy;
  result.asked_by = propose.asked_by;
  result.reason = propose.reason;
  const absl::Time rebuild = MonotonicNow();
  const absl::Status rebuilt = RebuildDerived(derived_, proposal.plan, topology_, gpu());
  if (timer_ && !derived_.empty()) timer_->AddSpan("rebuild", rebuild);
  TellTransport();
  member_->OnApplied(result.received_bytes, SecondsInSwitch());  // true in either case
  return rebuilt.ok() ? absl::OkStatus() : End(step, rebuilt, /*target=*/nullptr);
}

void Client::Impl::TellTransport() {
  const std::string_view fallback_reason = executor_->transport_fallback_reason();
  if (told_transport_ || fallback_reason.empty()) return;
  told_transport_ = true;
  member_->SetTransport(executor_->transport_name(), WithAheadNote(fallback_reason));
}

absl::Status Client::Impl::Drop(int64_t step, const Proposal& proposal, BoundaryResult& result) {
  if (!executor_->may_vote()) return End(step, WritesGoOn(result.reason), &proposal);
  ++dropped_chunks_;
  if (timer_) timer_->SetOutcome("dropped");
  log_.Write({.event = "drop",
              .step = step,
              .last_step = step,
              .version = proposal.propose.version,
              .digest = proposal.propose.digest,
              .ok = false,
              .reason = result.reason});
  member_->OnDropped(result.reason);
  return absl::OkStatus();
}

absl::Status Client::Impl::WritesGoOn(std::string_view why) const {
  const RankId self{options_.rank};
  return MissingRanksError("the second vote", std::span(&self, 1),
                           absl::StrCat("this rank cannot stop its pending writes into other "
                                        "ranks' staging and leaves the run; cause: ",
                                        std::string(why)));
}

absl::Status Client::Impl::End(int64_t step, const absl::Status& error, const Proposal* target) {
  const std::string reason(error.message());
  StopAhead(reason);
  log_.Write({.event = "vote",
              .step = step,
              .last_step = step,
              .version = target == nullptr ? 0 : target->propose.version,
              .digest = target == nullptr ? Digest{} : target->propose.digest,
              .ok = false,
              .reason = reason});
  ended_ = error;
  LeavePeers();
  member_->OnEnded(reason, MissingRanks(error));  // first: no PREPARED comes after the stop
  if (timer_) timer_->SetOutcome("ended");
  WriteTimes(MonotonicNow());
  log_.WriteStop({.event = "stop",
                  .step = step,
                  .last_step = step,
                  .version = running_.version,
                  .digest = running_.digest,
                  .ok = false,
                  .reason = reason});
  return ended_;
}

}  // namespace eplb
