#include "client/session/shared_member.h"

#include <utility>

namespace eplb {

SharedMember::SharedMember(Member member, int64_t max_window_steps, OnPrepared on_prepared)
    : on_prepared_(std::move(on_prepared)),
      step_(member.step()),
      report_every_(member.options().identity.report_every),
      running_bits_(member.running().digest.VoteBits()),
      member_(std::move(member)),
      windows_(max_window_steps) {}

std::unique_lock<std::mutex> SharedMember::LockForTraining() {
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) return lock;
  const auto began = std::chrono::steady_clock::now();
  // Others hold the lock for microseconds; who sleeps until it is free may be woken milliseconds
  // later where the machine is busy.
  while (!lock.try_lock()) {
    if (std::chrono::steady_clock::now() - began < kSpin) continue;
    lock.lock();
    break;
  }
  if (std::chrono::steady_clock::now() - began > kLongWait) ++long_waits_;
  return lock;
}

wire::SetReportInterval SharedMember::FinishStep(int64_t step,
                                                 std::optional<wire::LoadReport> window,
                                                 int32_t report_every) {
  step_ = step;
  report_every_ = report_every;
  if (window.has_value()) kept_.push_back(*std::move(window));
  if (kept_.empty() && num_report_intervals_ == report_intervals_seen_)
    return report_interval_seen_;
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    if (kept_.size() < kMaxKept) return report_interval_seen_;
    lock = LockForTraining();
  }
  HandOver();
  return report_interval_seen_;
}

VoteSnapshot SharedMember::Enter() {
  if (!may_be_prepared_) {
    open_ = Member::NothingPrepared(running_bits_);
    return *open_;
  }
  const std::unique_lock<std::mutex> lock = LockForTraining();
  Update();
  return member_.Enter();
}

VoteDecision SharedMember::Decide(std::span<const int64_t> minimum) {
  if (const std::optional<VoteSnapshot> open = std::exchange(open_, std::nullopt)) {
    return {.outcome = Member::OutcomeOf(*open, minimum)};
  }
  const std::unique_lock<std::mutex> lock = LockForTraining();
  Update();
  std::vector<wire::UpMessage> messages;
  VoteDecision decision = member_.Decide(minimum, messages);
  Publish();
  Push(std::move(messages));
  return decision;
}

void SharedMember::OnApplied(int64_t received_bytes, double pause_seconds) {
  const std::unique_lock<std::mutex> lock = LockForTraining();
  Update();
  Push({member_.OnApplied(received_bytes, pause_seconds)});
  running_bits_ = member_.running().digest.VoteBits();
  Publish();
}

void SharedMember::SetTransport(std::string_view name, std::string_view fallback_reason) {
  const std::unique_lock<std::mutex> lock = LockForTraining();
  member_.SetTransport(name, fallback_reason);
}

void SharedMember::OnDropped(std::string_view reason) {
  const std::unique_lock<std::mutex> lock = LockForTraining();
  Update();
  Push({member_.OnDropped(reason)});
  Publish();
}

void SharedMember::OnEnded(std::string_view reason, std::span<const RankId> missing_ranks) {
  const std::unique_lock<std::mutex> lock = LockForTraining();
  HandOver();
  const wire::UpMessage message = member_.OnEnded(reason, missing_ranks);
  Publish();
  if (!goodbye_.has_value()) goodbye_ = std::get<wire::Goodbye>(message);
}

void SharedMember::SayGoodbye(wire::Goodbye goodbye) {
  const std::unique_lock<std::mutex> lock = LockForTraining();
  HandOver();
  if (!goodbye_.has_value()) goodbye_ = std::move(goodbye);
}

wire::Hello SharedMember::Connect() {
  const std::lock_guard<std::mutex> lock(mutex_);
  Update();
  messages_.clear();
  overflow_ = false;
  wire::Hello hello = member_.MakeHello();
  hello.session_number = ++num_sessions_;
  return hello;
}

std::optional<wire::UpMessage> SharedMember::Next(bool with_windows) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!messages_.empty()) {
    wire::UpMessage message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }
  if (with_windows && !last_window_left_) {
    last_window_left_ = goodbye_.has_value();
    if (std::optional<wire::LoadReport> window = windows_.Take()) return *std::move(window);
  }
  return goodbye_;
}

void SharedMember::OnDown(const wire::DownMessage& message) {
  if (const auto* propose = std::get_if<wire::Propose>(&message)) {
    OnPropose(*propose);
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (goodbye_.has_value()) return;
  Update();
  if (const auto* pace = std::get_if<wire::SetReportInterval>(&message)) {
    report_interval_ = *pace;
    ++num_report_intervals_;
  }
  Push(member_.OnDown(message));
  Publish();
}

void SharedMember::OnPropose(const wire::Propose& propose) {
  RunningPlacement running;
  int64_t step = 0;
  const MemberOptions* options = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (goodbye_.has_value()) return;
    Update();
    if (std::optional<wire::UpMessage> answer = member_.Begin(propose)) {
      Push({*std::move(answer)});
      return;
    }
    running = member_.running();
    step = member_.step();
    options = &member_.options();  // never changes after construction
    is_checking_ = true;
  }
  Prepared prepared = PrepareProposal(*options, running, propose);  // milliseconds: no lock
  if (const auto* proposal = std::get_if<std::shared_ptr<const Proposal>>(&prepared)) {
    on_prepared_(**proposal, step);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!goodbye_.has_value()) {
    Update();
    Push({member_.Finish(std::move(prepared))});
    Publish();
  }
  is_checking_ = false;
}

bool SharedMember::TakeOverflow() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(overflow_, false);
}

int64_t SharedMember::dropped_steps() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return windows_.dropped_steps();
}

void SharedMember::Update() {
  member_.OnStep(step_);
  member_.SetReportEvery(report_every_);
}

void SharedMember::HandOver() {
  Update();
  for (wire::LoadReport& window : kept_) windows_.Add(std::move(window));
  kept_.clear();
  report_intervals_seen_ = num_report_intervals_;
  report_interval_seen_ = report_interval_;
}

void SharedMember::Push(std::vector<wire::UpMessage> messages) {
  for (wire::UpMessage& message : messages) messages_.push_back(std::move(message));
  if (messages_.size() <= kMaxMessages) return;
  messages_.clear();
  overflow_ = true;
}

}  // namespace eplb
