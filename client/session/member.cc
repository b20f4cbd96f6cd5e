#include "client/session/member.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace eplb {
namespace {

wire::Nack MakeNack(int64_t version, wire::NackCode code, std::string detail) {
  return {.version = version, .code = code, .detail = std::move(detail)};
}

wire::Prepared MakePrepared(const Proposal& proposal) {
  return {.version = proposal.propose.version,
          .digest = proposal.propose.digest,
          .plan_hash = proposal.plan.hash};
}

std::string Detail(const absl::Status& status) { return std::string(status.message()); }

}  // namespace

Prepared PrepareProposal(const MemberOptions& options, const RunningPlacement& running,
                         const wire::Propose& propose) {
  using enum wire::NackCode;
  std::vector<LayerId> layers;
  for (const LayerPlacement& layer : propose.layers) layers.push_back(layer.layer);
  if (layers.empty()) return MakeNack(propose.version, kInvalid, "the proposal has no layer");
  if (!std::ranges::is_sorted(layers)) {
    return MakeNack(propose.version, kInvalid, "the proposal's layers do not rise");
  }
  absl::StatusOr<Placement> target = running.placement->WithLayers(propose.layers);
  if (!target.ok()) return MakeNack(propose.version, kInvalid, Detail(target.status()));
  if (const Digest digest = DigestOf(*target); digest != propose.digest) {
    return MakeNack(propose.version, kWrongDigest,
                    absl::StrCat("the proposal has digest ", propose.digest.Hex(),
                                 ", its layers on the running placement give ", digest.Hex()));
  }
  absl::StatusOr<MigrationPlan> plan =
      PlanMigration(*running.placement, *target, layers, options.migration);
  if (!plan.ok()) return MakeNack(propose.version, kInvalid, Detail(plan.status()));
  if (const absl::Status fits = options.fits(*plan); !fits.ok()) {
    return MakeNack(propose.version, kStagingTooSmall, Detail(fits));
  }
  return std::make_shared<const Proposal>(
      Proposal{.propose = propose,
               .target = std::make_shared<const Placement>(*std::move(target)),
               .plan = *std::move(plan)});
}

Member::Member(MemberOptions options, RunningPlacement running)
    : options_(std::move(options)), running_(std::move(running)) {
  highest_version_ = running_.version;
  step_ = options_.identity.step;
  report_every_ = options_.identity.report_every;
  last_applied_ = {.version = running_.version, .digest = running_.digest, .step = FinishedStep()};
}

std::vector<wire::UpMessage> Member::OnDown(const wire::DownMessage& message) {
  if (ended_) return {};
  if (const auto* welcome = std::get_if<wire::Welcome>(&message)) {
    highest_term_ = std::max(highest_term_, welcome->term);
  } else if (const auto* propose = std::get_if<wire::Propose>(&message)) {
    if (std::optional<wire::UpMessage> answer = Begin(*propose)) return {*std::move(answer)};
    return {Finish(PrepareProposal(options_, running_, *propose))};
  } else if (const auto* cancel = std::get_if<wire::Cancel>(&message)) {
    return OnCancel(*cancel);
  } else if (const auto* need = std::get_if<wire::NeedPlacement>(&message)) {
    return OnNeedPlacement(*need);
  } else if (const auto* keep = std::get_if<wire::Keep>(&message)) {
    keep_ = *keep;
  }
  return {};  // SetReportInterval and Drain are the session's
}

std::optional<wire::UpMessage> Member::Begin(const wire::Propose& propose) {
  using enum wire::NackCode;
  const int64_t version = propose.version;
  if (ended_) return MakeNack(version, kBusy, "the run of this rank has ended");
  if (propose.term < highest_term_) {
    return MakeNack(version, kStaleTerm,
                    absl::StrCat("term ", propose.term, ", this rank has seen ", highest_term_));
  }
  highest_term_ = propose.term;
  if (prepared_ != nullptr && prepared_->propose.version == version &&
      prepared_->propose.digest == propose.digest) {
    return MakePrepared(*prepared_);
  }
  if (version <= highest_version_) {
    return MakeNack(version, kStaleVersion,
                    absl::StrCat("this rank has seen version ", highest_version_));
  }
  highest_version_ = version;
  if (prepared_ != nullptr) {
    return MakeNack(version, kBusy,
                    absl::StrCat("version ", prepared_->propose.version,
                                 in_vote_ ? " is being voted on" : " is PREPARED"));
  }
  if (propose.base_version != running_.version || propose.base_digest != running_.digest) {
    return MakeNack(
        version, kWrongBase,
        absl::StrCat("the base is version ", propose.base_version, " ", propose.base_digest.Hex(),
                     ", this rank runs ", running_.version, " ", running_.digest.Hex()));
  }
  return std::nullopt;
}

wire::UpMessage Member::Finish(Prepared prepared) {
  if (auto* nack = std::get_if<wire::Nack>(&prepared)) return std::move(*nack);
  auto& proposal = std::get<std::shared_ptr<const Proposal>>(prepared);
  const wire::Propose& propose = proposal->propose;
  if (ended_ || prepared_ != nullptr || propose.base_digest != running_.digest ||
      propose.base_version != running_.version) {
    return MakeNack(propose.version, wire::NackCode::kBusy,
                    "this rank changed while it checked the proposal");
  }
  prepared_ = std::move(proposal);
  return MakePrepared(*prepared_);
}

wire::Hello Member::MakeHello() const {
  wire::Hello hello = options_.identity;
  hello.report_every = report_every_;
  hello.running_version = running_.version;
  hello.running_digest = running_.digest;
  hello.prepared_version = prepared_ == nullptr ? 0 : prepared_->propose.version;
  hello.highest_term = highest_term_;
  hello.highest_version = highest_version_;
  hello.step = FinishedStep();
  hello.run_number = keep_.run_number;
  hello.memory = keep_.memory;
  return hello;
}

wire::Failed Member::MakeFailed(int64_t version, wire::FailedCode code, std::string detail) const {
  return {.version = version, .code = code, .detail = std::move(detail), .step = FinishedStep()};
}

std::vector<wire::UpMessage> Member::OnCancel(const wire::Cancel& cancel) {
  if (prepared_ != nullptr && prepared_->propose.version == cancel.version) {
    if (in_vote_ && frozen_.proposal == prepared_) {
      cancel_ = cancel;
      return {};
    }
    prepared_ = nullptr;
    return {MakeFailed(cancel.version, wire::FailedCode::kCancelled, cancel.reason)};
  }
  if (cancel.version == running_.version) return {last_applied_};
  return {MakeFailed(cancel.version, wire::FailedCode::kSuperseded,
                     "this rank holds no such proposal")};
}

std::vector<wire::UpMessage> Member::OnNeedPlacement(const wire::NeedPlacement& need) const {
  if (need.digest != running_.digest) return {};  // a switch was first: its Applied is on the way
  return {wire::PlacementBody{
      .version = running_.version, .digest = running_.digest, .placement = *running_.placement}};
}

VoteSnapshot Member::Enter() {
  in_vote_ = true;
  frozen_ = NothingPrepared(running_.digest.VoteBits());
  if (prepared_ == nullptr) return frozen_;
  frozen_.proposal = prepared_;
  frozen_.values[0] = prepared_->propose.version;
  frozen_.values[2] = prepared_->propose.digest.VoteBits();
  for (const size_t i : {0, 2}) frozen_.values[i + 1] = -frozen_.values[i];
  return frozen_;
}

VoteSnapshot Member::NothingPrepared(int64_t running) {
  return {.values = {0, 0, 0, 0, running, -running}, .proposal = nullptr};
}

VoteOutcome Member::OutcomeOf(const VoteSnapshot& own, std::span<const int64_t> minimum) {
  // min(x) == x and min(-x) == -x on this rank say that every rank has x.
  const auto agree = [&](size_t i) {
    return minimum[i] == own.values[i] && minimum[i + 1] == own.values[i + 1];
  };
  if (minimum.size() != own.values.size() || !agree(4)) return VoteOutcome::kDiverged;
  const bool run = own.proposal != nullptr && agree(0) && agree(2);
  return run ? VoteOutcome::kRunChunk : VoteOutcome::kNothing;
}

VoteDecision Member::Decide(std::span<const int64_t> minimum,
                            std::vector<wire::UpMessage>& messages) {
  const VoteOutcome outcome = OutcomeOf(frozen_, minimum);
  if (outcome == VoteOutcome::kDiverged) return {.outcome = outcome};
  if (outcome == VoteOutcome::kRunChunk) {
    return {.outcome = outcome, .proposal = frozen_.proposal};
  }
  in_vote_ = false;
  frozen_.proposal = nullptr;
  if (cancel_.has_value()) {
    prepared_ = nullptr;
    messages.push_back(MakeFailed(cancel_->version, wire::FailedCode::kCancelled, cancel_->reason));
    cancel_.reset();
  }
  return {.outcome = VoteOutcome::kNothing};
}

void Member::SetTransport(std::string_view name, std::string_view fallback_reason) {
  wire::TransportInfo& transport = options_.identity.transport;
  transport.name = std::string(name);
  transport.fallback_reason = std::string(fallback_reason);
  transport_changed_ = true;
}

wire::UpMessage Member::OnApplied(int64_t received_bytes, double pause_seconds) {
  const std::shared_ptr<const Proposal> applied = std::exchange(prepared_, nullptr);
  running_ = {.version = applied->propose.version,
              .digest = applied->propose.digest,
              .placement = applied->target};
  last_applied_ = {.version = running_.version,
                   .digest = running_.digest,
                   .step = FinishedStep(),
                   .received_bytes = received_bytes,
                   .pause_seconds = pause_seconds};
  if (transport_changed_) {
    last_applied_.transport = options_.identity.transport.name;
    last_applied_.fallback_reason = options_.identity.transport.fallback_reason;
  }
  in_vote_ = false;
  frozen_.proposal = nullptr;
  cancel_.reset();
  return last_applied_;
}

wire::UpMessage Member::OnDropped(std::string_view reason) {
  const std::shared_ptr<const Proposal> dropped = std::exchange(prepared_, nullptr);
  in_vote_ = false;
  frozen_.proposal = nullptr;
  cancel_.reset();
  return MakeFailed(dropped->propose.version, wire::FailedCode::kTransfer, std::string(reason));
}

wire::UpMessage Member::OnEnded(std::string_view reason, std::span<const RankId> missing_ranks) {
  ended_ = true;
  prepared_ = nullptr;
  frozen_.proposal = nullptr;
  cancel_.reset();
  wire::Goodbye goodbye{.reason = std::string(reason), .missing_ranks = {}, .failed = true};
  for (const RankId rank : missing_ranks) goodbye.missing_ranks.push_back(rank.value);
  return goodbye;
}

}  // namespace eplb
