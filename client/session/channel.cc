#include "client/session/channel.h"

#include <utility>

namespace eplb {
namespace {

constexpr uint64_t kMaxTerm = uint64_t{1} << 62;

}  // namespace

bool LeaderWatch::Leads(const v1::GetLeaderResponse& another, size_t position, int64_t own_term,
                        size_t own) {
  if (another.connected_ranks() == 0 || another.term() > kMaxTerm) return false;
  const auto term = static_cast<int64_t>(another.term());
  return term > own_term || (term == own_term && position < own);
}

bool LeaderWatch::WasElectedLater(const v1::GetLeaderResponse& another, int64_t own_election_term) {
  if (another.election_term() > kMaxTerm) return false;
  return static_cast<int64_t>(another.election_term()) > own_election_term;
}

LeaderWatch::LeaderWatch(const std::vector<std::string>& endpoints, size_t own, wire::TlsFiles tls,
                         absl::Duration every, uint64_t seed)
    : own_(own), tls_(std::move(tls)), every_(every), jitter_(seed) {
  for (size_t position = 0; position < endpoints.size(); ++position) {
    if (position != own) others_.push_back({endpoints[position], position});
  }
}

void LeaderWatch::Begin(const wire::Hello& hello, const wire::Welcome& welcome) {
  request_.set_job(hello.job);
  request_.set_run_id(hello.run_id);
  term_ = welcome.term;
  election_term_ = welcome.election_term;
  if (due_ == Clock::time_point::max()) PlanNext();
}

void LeaderWatch::PlanNext() {
  if (others_.empty()) return;
  // Between half and one and a half times, so that the ranks of a job do not ask all at once.
  const double factor = std::uniform_real_distribution<double>(0.5, 1.5)(jitter_);
  due_ = Clock::now() +
         absl::ToChronoNanoseconds(every_ * factor / static_cast<double>(others_.size()));
}

bool LeaderWatch::Due(Clock::time_point now) const { return call_ == nullptr && now >= due_; }

bool LeaderWatch::Ask(grpc::CompletionQueue* queue, void* tag) {
  Daemon& asked = others_[next_];
  if (asked.channel == nullptr) {
    absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = MakeChannel(asked.endpoint, tls_);
    if (!channel.ok()) {  // the next stream says why
      PlanNext();
      return false;
    }
    asked.channel = *std::move(channel);
  }
  stub_ = v1::Balancer::NewStub(asked.channel);
  context_ = std::make_unique<grpc::ClientContext>();
  context_->set_deadline(std::chrono::system_clock::now() + kDeadline);
  response_.Clear();
  call_ = stub_->AsyncGetLeader(context_.get(), request_, queue);
  call_->Finish(&response_, &status_, tag);
  return true;
}

std::optional<wire::Moved> LeaderWatch::OnAnswer() {
  const Daemon& asked = others_[next_];
  next_ = (next_ + 1) % others_.size();
  call_.reset();
  PlanNext();
  if (!status_.ok()) return std::nullopt;
  if (WasElectedLater(response_, election_term_)) {
    return wire::Moved{.term = static_cast<int64_t>(response_.election_term()),
                       .endpoint = asked.endpoint};
  }
  if (response_.election_term() > 0 || election_term_ > 0) return std::nullopt;
  if (!Leads(response_, asked.position, term_, own_)) return std::nullopt;
  return wire::Moved{.term = static_cast<int64_t>(response_.term()), .endpoint = asked.endpoint};
}

void LeaderWatch::Cancel() {
  due_ = Clock::time_point::max();
  if (call_ != nullptr) context_->TryCancel();
}

}  // namespace eplb
