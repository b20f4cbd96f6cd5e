// ClientOptions::ahead: the rows of a chunk move while the trainer runs its next steps, and the
// chunk is committed at the next vote. Until then the executor is the staging thread's.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "base/errors.h"
#include "base/monotonic_clock.h"
#include "base/status_macros.h"
#include "client/client_impl.h"
#include "client/session/log_line.h"

namespace eplb {
namespace {

constexpr char kAdvice[] =
    ". Rows are staged at the boundary from now on. Do not set `ahead` for experts that steps "
    "change.";

// Returns whether rows may move while a step runs. NCCL's kernels may not: they and those of the
// step's own collectives can wait for each other.
bool MovesBesideSteps(std::string_view transport) {
  return transport == "host" || transport == "peer";
}

// "a; b"; what is empty says nothing.
std::string JoinReasons(std::string_view first, std::string_view second) {
  const bool both = !first.empty() && !second.empty();
  return absl::StrCat(std::string(first), both ? "; " : "", std::string(second));
}

}  // namespace

absl::Status Client::Impl::CheckRowsStay(const RegisteredTensors& tensors) const {
  if (!options_.ahead) return absl::OkStatus();
  for (const ExpertTensor& tensor : tensors.moved) {
    if (tensor.role != TensorRole::kState) continue;
    return InvalidInput("tensor \"", tensor.name,
                        "\" is state, which steps change; the option ahead is for experts that "
                        "nothing changes: drop it, or register weights alone");
  }
  return absl::OkStatus();
}

absl::Status Client::Impl::PrepareAhead(Executor& executor, TransportReport& report) {
  first_transport_reason_ = report.fallback_reason;
  if (!options_.ahead) return absl::OkStatus();
  const int64_t mine[] = {MovesBesideSteps(executor.transport_name()) ? 1 : 0};
  EPLB_ASSIGN_OR_RETURN(const std::vector<int64_t> all,
                        control_->AllReduceMin(mine, options_.start_deadline));
  if (all.front() == 1) {
    staging_thread_ = std::make_unique<StagingThread>(executor);
    return absl::OkStatus();
  }
  ahead_note_ = absl::StrCat("rows are staged at the boundary: kernels of transport ",
                             std::string(executor.transport_name()),
                             " and those of a step's own collectives can wait for each other");
  if (options_.rank == 0) LogLine(absl::StrCat("the option ahead has no effect: ", ahead_note_));
  report.fallback_reason = WithAheadNote(first_transport_reason_);
  return absl::OkStatus();
}

void Client::Impl::BeginAhead(std::shared_ptr<const Proposal> proposal) {
  if (timer_) timer_->SetOutcome("begun");
  AheadChunk chunk{.proposal = std::move(proposal), .transport = executor_->transport_name()};
  Executor::StageOptions options = MakeStageOptions(MonotonicNow());
  options.timed = false;  // its rounds lie in no boundary
  const absl::Status begun = executor_->BeginStage(chunk.proposal->plan, options);
  if (!begun.ok()) chunk.staged = begun;  // told to all ranks by the next vote
  ahead_ = std::move(chunk);
  if (begun.ok()) staging_thread_->Begin();
}

void Client::Impl::JoinAhead() {
  if (!StagingRuns()) return;
  ahead_->staged = staging_thread_->Join();
  ahead_->joined = MonotonicNow();
}

void Client::Impl::StopAhead(std::string_view why) {
  if (!ahead_.has_value()) return;
  if (StagingRuns()) ahead_->staged = staging_thread_->Stop();
  ahead_->joined = MonotonicNow();
  const absl::Status staged = ahead_->staged->status();
  if (staged.ok()) executor_->Discard(/*all_whole=*/true);  // these transports share nothing
  if (staged.ok() || absl::IsCancelled(staged)) {
    ahead_->staged = absl::CancelledError(std::string(why));
  }
}

absl::Status Client::Impl::StopAheadHere(std::string_view why) {
  StopAhead(why);
  if (executor_->may_vote()) return absl::OkStatus();
  return End(next_step_ - 1, WritesGoOn(why), /*target=*/nullptr);
}

absl::Status Client::Impl::StopAheadTogether(std::string_view why) {
  if (!ahead_.has_value()) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(StopAheadHere(why));
  const absl::Status all_stopped = control_->Barrier(options_.vote_deadline);
  return all_stopped.ok() ? absl::OkStatus() : End(next_step_ - 1, all_stopped, /*target=*/nullptr);
}

absl::Status Client::Impl::FinishAhead(int64_t step, BoundaryResult& result) {
  switch_began_ = boundary_began_;
  AheadChunk chunk = *std::exchange(ahead_, std::nullopt);
  const Proposal& proposal = *chunk.proposal;
  if (log_.is_open()) {
    timer_.emplace(step, proposal.propose.version, boundary_began_);
    timer_->AddSpan("transfer", boundary_began_, std::max(boundary_began_, chunk.joined));
  }
  absl::StatusOr<Executor::Staged> staged = *std::move(chunk.staged);
  ahead_promise_broken_ = false;
  if (staged.ok()) {
    const absl::Time began = MonotonicNow();
    const absl::Duration limit =
        rows_on_device_ ? options_.vote_deadline : options_.transfer_deadline;
    absl::Status same = executor_->CheckSources(stream_, began + limit);
    if (timer_) timer_->AddSpan("check", began);
    if (!same.ok()) staged = std::move(same);
    if (staged.ok() && !result.reason.empty()) {  // VoteNo gave it
      staged = FailedPrecondition(result.reason);
    }
    // Not where staging failed: bytes that were damaged on their way say nothing of the steps.
    ahead_promise_broken_ = absl::IsDataLoss(staged.status());
  }
  return SecondVote(step, proposal, staged, result);
}

void Client::Impl::GiveUpAhead(std::string& reason) {
  if (!ahead_promise_broken_) reason = "rows of another rank changed between the boundaries";
  reason += kAdvice;
  staging_thread_.reset();
  ahead_note_ = "rows are staged at the boundary: they changed while they were staged ahead";
  if (options_.rank == 0) LogLine(absl::StrCat("the option ahead was given up: ", ahead_note_));
  const std::string_view now = executor_->transport_fallback_reason();
  member_->SetTransport(executor_->transport_name(),
                        WithAheadNote(now.empty() ? first_transport_reason_ : now));
}

std::string Client::Impl::WithAheadNote(std::string_view reason) const {
  return JoinReasons(reason, ahead_note_);
}

}  // namespace eplb
