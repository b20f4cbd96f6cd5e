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

void AheadStaging::Begin(Executor& executor, std::shared_ptr<const Proposal> proposal,
                         const Executor::StageOptions& options) {
  chunk.emplace(Chunk{.executor = executor,
                      .proposal = std::move(proposal),
                      .transport = executor.transport_name()});
  const absl::Status begun = executor.BeginStage(chunk->proposal->plan, options);
  if (begun.ok()) {
    thread->Begin();
  } else {
    chunk->staged = begun;  // the next vote reports it to all ranks
  }
}

void AheadStaging::Join() {
  if (!Runs()) return;
  chunk->staged = thread->Join();
  chunk->joined = MonotonicNow();
}

void AheadStaging::Stop(std::string_view why) {
  if (!chunk.has_value()) return;
  if (Runs()) chunk->staged = thread->Stop();
  chunk->joined = MonotonicNow();
  const absl::Status staged = chunk->staged->status();
  if (staged.ok()) chunk->executor.Discard(/*all_whole=*/true);  // these transports share nothing
  if (staged.ok() || absl::IsCancelled(staged)) {
    chunk->staged = absl::CancelledError(std::string(why));
  }
}

absl::Status Client::Impl::CheckRowsStay(const RegisteredTensors& tensors) const {
  if (!setup_.options.ahead) return absl::OkStatus();
  for (const ExpertTensor& tensor : tensors.moved) {
    if (tensor.role != TensorRole::kState) continue;
    return InvalidInput("tensor \"", tensor.name,
                        "\" is state, which steps change; the option ahead is for experts that "
                        "nothing changes: drop it, or register weights alone");
  }
  return absl::OkStatus();
}

absl::Status Client::Impl::PrepareAhead(Executor& executor, TransportReport& report) {
  rows_.first_transport_reason = report.fallback_reason;
  if (!setup_.options.ahead) return absl::OkStatus();
  const int64_t mine[] = {MovesBesideSteps(executor.transport_name()) ? 1 : 0};
  EPLB_ASSIGN_OR_RETURN(const std::vector<int64_t> all,
                        control_->AllReduceMin(mine, setup_.options.start_deadline));
  if (all.front() == 1) {
    ahead_.thread = std::make_unique<StagingThread>(executor);
    cadence_.SetAhead(true);
    return absl::OkStatus();
  }
  ahead_.note = absl::StrCat("rows are staged at the boundary: kernels of transport ",
                             std::string(executor.transport_name()),
                             " and those of a step's own collectives can wait for each other");
  if (setup_.options.rank == 0)
    LogLine(absl::StrCat("the option ahead has no effect: ", ahead_.note));
  report.fallback_reason = WithAheadNote(rows_.first_transport_reason);
  return absl::OkStatus();
}

void Client::Impl::BeginAhead(std::shared_ptr<const Proposal> proposal) {
  boundary_.SetOutcome("begun");
  Executor::StageOptions options = MakeStageOptions(MonotonicNow());
  options.timed = false;  // its rounds lie in no boundary
  ahead_.Begin(*rows_.executor, std::move(proposal), options);
}

absl::Status Client::Impl::StopAheadHere(std::string_view why) {
  ahead_.Stop(why);
  if (rows_.executor->may_vote()) return absl::OkStatus();
  return End(WritesGoOn(why));
}

absl::Status Client::Impl::StopAheadTogether(std::string_view why) {
  if (!ahead_.chunk.has_value()) return absl::OkStatus();
  EPLB_RETURN_IF_ERROR(StopAheadHere(why));
  const absl::Status all_stopped = control_->Barrier(setup_.options.vote_deadline);
  return all_stopped.ok() ? absl::OkStatus() : End(all_stopped);
}

absl::Status Client::Impl::FinishAhead(int64_t step, BoundaryResult& result) {
  boundary_.switch_began = boundary_.began;
  AheadStaging::Chunk chunk = *std::exchange(ahead_.chunk, std::nullopt);
  const Proposal& proposal = *chunk.proposal;
  if (log_.is_open()) {
    boundary_.timer.emplace(step, proposal.propose.version, boundary_.began);
    boundary_.timer->AddSpan("transfer", boundary_.began, std::max(boundary_.began, chunk.joined));
  }
  absl::StatusOr<Executor::Staged> staged = *std::move(chunk.staged);
  ahead_.promise_broken = false;
  if (staged.ok()) {
    const absl::Time began = MonotonicNow();
    const absl::Duration limit =
        rows_.on_device ? setup_.options.vote_deadline : setup_.options.transfer_deadline;
    absl::Status same = rows_.executor->CheckSources(boundary_.stream, began + limit);
    boundary_.AddSpan("check", began);
    if (!same.ok()) staged = std::move(same);
    if (staged.ok() && !result.reason.empty()) {  // VoteNo gave it
      staged = FailedPrecondition(result.reason);
    }
    // Not where staging failed: bytes that were damaged on their way say nothing of the steps.
    ahead_.promise_broken = absl::IsDataLoss(staged.status());
  }
  return SecondVote(step, proposal, staged, result);
}

void Client::Impl::GiveUpAhead(std::string& reason) {
  if (!ahead_.promise_broken) reason = "rows of another rank changed between the boundaries";
  reason += kAdvice;
  ahead_.thread.reset();
  cadence_.SetAhead(false);
  ahead_.note = "rows are staged at the boundary: they changed while they were staged ahead";
  if (setup_.options.rank == 0)
    LogLine(absl::StrCat("the option ahead was given up: ", ahead_.note));
  const std::string_view now = rows_.executor->transport_fallback_reason();
  daemon_.member().SetTransport(rows_.executor->transport_name(),
                                WithAheadNote(now.empty() ? rows_.first_transport_reason : now));
}

std::string Client::Impl::WithAheadNote(std::string_view reason) const {
  return JoinReasons(reason, ahead_.note);
}

}  // namespace eplb
