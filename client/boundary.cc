// Client::StepBoundary: the vote, the chunk and the switch.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/client_impl.h"
#include "client/options.h"

namespace eplb {

absl::StatusOr<BoundaryResult> Client::Impl::StepBoundary(int64_t step, void* stream) {
  BoundaryResult result;
  result.version = running().version;
  if (setup_.disabled) return result;
  EPLB_RETURN_IF_ERROR(CheckRegistered("StepBoundary"));
  if (step != next_step_) {
    return FailedPrecondition("StepBoundary of step ", step, ", expected ", next_step_);
  }
  EPLB_RETURN_IF_ERROR(CheckNotCarried("StepBoundary"));
  boundary_.began = MonotonicNow();
  const bool votes = cadence_.VotesAt(step);
  if (votes) ahead_.Join();
  EPLB_RETURN_IF_ERROR(CheckStream(stream));
  boundary_.stream = stream;
  ++next_step_;
  shown_.ForgetArrays();
  log_.AddStep(step, running().version, running().digest);
  const bool reports = daemon_.has_session() && setup_.Reports();
  if (SplitOf(setup_.options) == SplitMode::kBatch) shown_.RecordSplits(reports, counts_.windows);
  std::optional<wire::LoadReport> window = counts_.EndStep(step, reports);
  counts_.windows.SetReportInterval(
      daemon_.member().FinishStep(step, std::move(window), counts_.windows.report_every()));
  if (votes) EPLB_RETURN_IF_ERROR(Vote(step, result));
  // After a switch, which uploads tables by the newest options, this does nothing.
  if (const absl::Status renewed = shown_.RenewSplitTables(stream); !renewed.ok()) {
    return End(renewed);
  }
  if (result.reason.empty()) result.reason = counts_.watch.reason();
  result.votes_next = cadence_.VotesAt(next_step_);
  result.window_ends_next = counts_.windows.EndsAt(next_step_);
  const absl::Time ended = MonotonicNow();
  result.pause_seconds = absl::ToDoubleSeconds(ended - boundary_.began);
  WriteTimes(ended);
  return result;
}

absl::Status Client::Impl::CheckStream(void* stream) const {
  if (rows_.on_device) {
    absl::Status checked = shown_.queue().CheckStream(stream);
    // Another error shows where rows move: the ranks vote on it there.
    return absl::IsFailedPrecondition(checked) ? checked : absl::OkStatus();
  }
  if (stream == nullptr) return absl::OkStatus();
  return FailedPrecondition(
      "stream must be null: the expert tensors are in host memory. Synchronize your stream before "
      "StepBoundary.");
}

void Client::Impl::WriteTimes(absl::Time ended) {
  if (!boundary_.timer) return;
  boundary_.timer->SetTransport(transport());
  log_.WriteBoundary(boundary_.timer->Finish(ended));
  boundary_.timer.reset();
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
  result.reason = std::exchange(boundary_.no_reason, {});
  if (ahead_.chunk.has_value()) return FinishAhead(step, result);
  VoteSnapshot snapshot = daemon_.member().Enter();
  if (!result.reason.empty()) snapshot.values = Member::NothingPrepared(snapshot.values[4]).values;
  const Proposal* const target = snapshot.proposal.get();
  const bool timed = target != nullptr && log_.is_open();
  if (timed) boundary_.timer.emplace(step, target->propose.version, boundary_.began);
  const absl::Time began = timed ? MonotonicNow() : absl::InfinitePast();
  std::vector<int64_t> mine(snapshot.values.begin(), snapshot.values.end());
  mine.push_back(cadence_.Wants(step, daemon_.member().knows_proposal(), daemon_.has_session(),
                                counts_.windows.report_every()));
  const absl::StatusOr<std::vector<int64_t>> minimum =
      control_->AllReduceMin(mine, setup_.options.vote_deadline);
  boundary_.AddSpan("vote", began);
  if (!minimum.ok()) return End(minimum.status(), target);
  rows_.NoteVote();
  cadence_.Voted(step, minimum->back());
  const VoteDecision decision =
      daemon_.member().Decide(std::span(*minimum).first(snapshot.values.size()));
  if (decision.outcome == VoteOutcome::kDiverged) {
    return End(
        DataLoss("after step ", step, " the ranks run different placements, this rank version ",
                 running().version, " ", running().digest.Hex(),
                 "; the run ends, restart it from a checkpoint"),
        target);
  }
  const bool agreed = decision.outcome == VoteOutcome::kRunChunk;
  if (target != nullptr) {
    log_.Write({.event = "vote",
                .step = step,
                .version = target->propose.version,
                .digest = target->propose.digest,
                .ok = agreed,
                .reason = agreed                  ? ""
                          : result.reason.empty() ? "not all ranks are PREPARED for it"
                                                  : result.reason});
  }
  if (!agreed) return absl::OkStatus();
  if (ahead_.thread == nullptr) return RunChunk(step, *decision.proposal, result);
  BeginAhead(decision.proposal);
  return absl::OkStatus();
}

Executor::StageOptions Client::Impl::MakeStageOptions(absl::Time began) {
  return {.post_id = rows_.NextPost(),
          .deadline = began + setup_.options.transfer_deadline,
          .begin_by = rows_.on_device ? began + setup_.options.vote_deadline : absl::InfinitePast(),
          .stream = boundary_.stream,
          .timed = boundary_.timer.has_value()};
}

absl::Status Client::Impl::RunChunk(int64_t step, const Proposal& proposal,
                                    BoundaryResult& result) {
  const absl::Time began = MonotonicNow();
  boundary_.switch_began = began;
  const absl::StatusOr<Executor::Staged> staged =
      rows_.executor->Stage(proposal.plan, MakeStageOptions(began));
  boundary_.AddSpan("transfer", began);
  if (boundary_.timer && staged.ok()) AddStaged(*staged, *boundary_.timer);
  return SecondVote(step, proposal, staged, result);
}

absl::Status Client::Impl::SecondVote(int64_t step, const Proposal& proposal,
                                      const absl::StatusOr<Executor::Staged>& staged,
                                      BoundaryResult& result) {
  if (!rows_.executor->may_vote()) {
    return End(WritesGoOn(std::string(staged.status().message())), &proposal);
  }
  const int64_t version = proposal.propose.version;
  // Ranks that stage ahead add whether no row changed meanwhile.
  std::vector<int64_t> mine = {
      staged.ok() ? 1 : 0, version, -version, rows_.executor->is_whole() ? 1 : 0,
      VoteCadence::WantsAfterSwitch(step, proposal.propose, counts_.windows.report_every())};
  if (ahead_.thread != nullptr) mine.push_back(ahead_.promise_broken ? 0 : 1);
  const absl::Time second = MonotonicNow();
  const absl::StatusOr<std::vector<int64_t>> minimum =
      control_->AllReduceMin(mine, setup_.options.vote_deadline);
  boundary_.AddSpan("second vote", second);
  // Rows that were staged ahead had no vote before this one: it waits for the slowest rank.
  if (ahead_.thread != nullptr) boundary_.switch_began += MonotonicNow() - second;
  if (!minimum.ok()) {
    rows_.executor->Discard();
    return End(minimum.status(), &proposal);
  }
  rows_.NoteVote();
  if ((*minimum)[1] != version || (*minimum)[2] != -version) {
    rows_.executor->Discard();
    return End(DataLoss("the ranks staged different versions"), &proposal);
  }
  cadence_.Voted(step, (*minimum)[0] == 1 ? (*minimum)[4] : 1);
  if ((*minimum)[0] == 1) {
    result.sent_bytes = staged->sent_bytes;
    result.received_bytes = staged->received_bytes;
    return Commit(step, proposal, result);
  }
  result.reason =
      staged.ok() ? "the transfer failed on another rank" : std::string(staged.status().message());
  rows_.executor->Discard(/*all_whole=*/(*minimum)[3] == 1);
  if (ahead_.thread != nullptr && minimum->back() == 0) GiveUpAhead(result.reason);
  return Drop(step, proposal, result);
}

absl::Status Client::Impl::Switch(std::span<const LayerId> layers, const Placement& target) {
  EPLB_RETURN_IF_ERROR(rows_.executor->Commit(boundary_.stream));
  return shown_.UpdateRouteTables(target, layers, boundary_.stream);
}

absl::Status Client::Impl::Commit(int64_t step, const Proposal& proposal, BoundaryResult& result) {
  const wire::Propose& propose = proposal.propose;
  std::vector<LayerId> layers;
  for (const LayerPlacement& layer : propose.layers) layers.push_back(layer.layer);
  const absl::Time began = MonotonicNow();
  const absl::Status switched = Switch(layers, *proposal.target);
  boundary_.AddSpan("commit", began);
  if (!switched.ok()) {
    return End(DataLoss("after step ", step, " version ", propose.version,
                        " was agreed on, but its rows could not be put into their slots: ",
                        switched.message()),
               &proposal);
  }
  shown_.Switch(
      {.version = propose.version, .digest = propose.digest, .placement = proposal.target});
  counts_.windows.Switched(step, propose.version);
  cadence_.Switched(step, propose);
  ++commits_;
  boundary_.SetOutcome("committed");
  log_.Write({.event = "commit",
              .step = step,
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
  const absl::Status rebuilt =
      RebuildDerived(rows_.derived, proposal.plan, setup_.topology, setup_.gpu());
  if (boundary_.timer && !rows_.derived.empty()) boundary_.timer->AddSpan("rebuild", rebuild);
  TellTransport();
  result.switch_seconds = boundary_.SecondsInSwitch();
  daemon_.member().OnApplied(result.received_bytes, result.switch_seconds);  // true in either case
  return rebuilt.ok() ? absl::OkStatus() : End(rebuilt);
}

void Client::Impl::TellTransport() {
  const std::string_view fallback_reason = rows_.executor->transport_fallback_reason();
  if (rows_.told_transport || fallback_reason.empty()) return;
  rows_.told_transport = true;
  daemon_.member().SetTransport(rows_.executor->transport_name(), WithAheadNote(fallback_reason));
}

absl::Status Client::Impl::Drop(int64_t step, const Proposal& proposal, BoundaryResult& result) {
  if (!rows_.executor->may_vote()) return End(WritesGoOn(result.reason), &proposal);
  ++dropped_chunks_;
  boundary_.SetOutcome("dropped");
  log_.Write({.event = "drop",
              .step = step,
              .version = proposal.propose.version,
              .digest = proposal.propose.digest,
              .ok = false,
              .reason = result.reason});
  daemon_.member().OnDropped(result.reason);
  return absl::OkStatus();
}

absl::Status Client::Impl::WritesGoOn(std::string_view why) const {
  const RankId self{setup_.options.rank};
  return MissingRanksError("the second vote", std::span(&self, 1),
                           absl::StrCat("this rank cannot stop its pending writes into other "
                                        "ranks' staging and leaves the run; cause: ",
                                        std::string(why)));
}

absl::Status Client::Impl::End(const absl::Status& error, const Proposal* target) {
  const int64_t step = next_step_ - 1;
  const std::string reason(error.message());
  ahead_.Stop(reason);
  log_.Write({.event = "vote",
              .step = step,
              .version = target == nullptr ? 0 : target->propose.version,
              .digest = target == nullptr ? Digest{} : target->propose.digest,
              .ok = false,
              .reason = reason});
  ended_ = error;
  LeavePeers();
  daemon_.member().OnEnded(reason, MissingRanks(error));  // first: no PREPARED comes after the stop
  boundary_.SetOutcome("ended");
  WriteTimes(MonotonicNow());
  log_.WriteStop({.event = "stop",
                  .step = step,
                  .version = running().version,
                  .digest = running().digest,
                  .ok = false,
                  .reason = reason});
  return ended_;
}

}  // namespace eplb
