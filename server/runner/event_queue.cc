#include "server/runner/event_queue.h"

#include <algorithm>
#include <utility>

#include "proto/wire/report_counts.h"

namespace eplb {
namespace {

// Part of the places and bytes from which on a stream pauses after each report: 1 / 4. The default
// 32,768 places for reports then have room for one more of each of the 20,000 streams.
constexpr size_t kPauseDivisor = 4;

// Three tables [L, S] and two [L, E].
size_t BytesOf(const Placement& placement) {
  return sizeof(int32_t) * static_cast<size_t>(3 * placement.replica_rank().size() +
                                               2 * placement.logical_replica_count().size());
}

// The part of an event that grows with the model.
size_t BytesOf(const core::Event& event) {
  if (const auto* question = std::get_if<core::PlanQuestion>(&event)) {
    return sizeof(int64_t) * static_cast<size_t>(question->load.size()) +
           BytesOf(question->current);
  }
  const auto* said = std::get_if<core::SessionMessage>(&event);
  if (said == nullptr) return 0;
  const wire::UpMessage& message = said->message;
  if (const auto* report = std::get_if<wire::LoadReport>(&message)) {
    return wire::CountBytes(*report);
  }
  if (const auto* body = std::get_if<wire::PlacementBody>(&message)) {
    return BytesOf(body->placement);
  }
  return 0;
}

template <class... Messages>
bool IsOneOf(const core::Event& event) {
  const auto* message = std::get_if<core::SessionMessage>(&event);
  return message != nullptr && (std::holds_alternative<Messages>(message->message) || ...);
}

// Returns 0 for an event of no stream.
core::SessionId StreamOf(const core::Event& event) {
  if (const auto* message = std::get_if<core::SessionMessage>(&event)) return message->session;
  const auto* closed = std::get_if<core::SessionClosed>(&event);
  return closed == nullptr ? 0 : closed->session;
}

}  // namespace

Admission EventQueue::Push(core::Event event) {
  const auto* message = std::get_if<core::SessionMessage>(&event);
  const size_t bytes = BytesOf(event);
  Admission admission = Admission::kQueued;
  {
    const std::lock_guard lock(mutex_);
    const bool asked_for = std::holds_alternative<core::Change>(event) ||
                           std::holds_alternative<core::ReserveVersion>(event) ||
                           std::holds_alternative<core::PlanQuestion>(event) ||
                           std::holds_alternative<core::PlanSettled>(event);
    const bool fits = Size() < limits_.max_events && bytes <= limits_.max_bytes - bytes_;
    if (asked_for && !fits) return Admission::kFull;
    if (message != nullptr) {
      const bool report = std::holds_alternative<wire::LoadReport>(message->message);
      const size_t places = report ? limits_.max_events / 2 : limits_.max_events;
      if (Size() >= places || bytes > limits_.max_bytes - bytes_) {
        if (report) ++dropped_reports_;
        return report ? Admission::kDropped : Admission::kFull;
      }
    }
    bytes_ += bytes;
    if (Add({.event = std::move(event), .bytes = bytes})) admission = Admission::kQueuedLast;
  }
  not_empty_.notify_one();
  return admission;
}

std::optional<int64_t> EventQueue::TurnOf(const core::Event& event) const {
  if (IsOneOf<wire::Prepared, wire::Nack, wire::Applied, wire::Failed>(event)) return std::nullopt;
  const auto stream = streams_.find(StreamOf(event));
  const int64_t last = stream == streams_.end() ? 0 : stream->second.last_turn;
  if (IsOneOf<wire::LoadReport>(event)) return std::max(turn_, last) + 1;
  if (IsOneOf<wire::Hello>(event) && !turns_.empty()) return turns_.rbegin()->first;
  return stream == streams_.end() ? std::nullopt : std::optional(last);
}

bool EventQueue::Add(Item item) {
  const std::optional<int64_t> turn = TurnOf(item.event);
  if (!turn) {
    others_.push_back(std::move(item));
    return false;
  }
  OfStream& stream = streams_[StreamOf(item.event)];
  ++stream.waiting;
  stream.last_turn = *turn;
  if (IsOneOf<wire::LoadReport>(item.event)) {
    stream.paused |= stream.waiting >= limits_.max_reports_of_stream ||
                     Size() >= limits_.max_events / 2 / kPauseDivisor ||
                     bytes_ > limits_.max_bytes / kPauseDivisor;
  }
  turns_.emplace(*turn, std::move(item));
  return stream.paused;
}

EventQueue::Item EventQueue::TakeTurn(std::optional<core::SessionId>* may_read) {
  const auto first = turns_.begin();
  turn_ = first->first;
  others_in_a_row_ = 0;
  Item item = std::move(first->second);
  turns_.erase(first);
  const auto found = streams_.find(StreamOf(item.event));
  OfStream& stream = found->second;
  if (--stream.waiting <= limits_.max_reports_of_stream / 2 && stream.paused) {
    stream.paused = false;
    *may_read = found->first;
  }
  if (stream.waiting == 0) streams_.erase(found);
  return item;
}

EventQueue::Item EventQueue::TakeOther() {
  ++others_in_a_row_;
  Item item = std::move(others_.front());
  others_.pop_front();
  return item;
}

std::optional<core::Event> EventQueue::Pop(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  (void)not_empty_.wait_for(lock, absl::ToChronoMicroseconds(timeout),
                            [this] { return stopped_ || Size() > 0; });
  if (stopped_ || Size() == 0) return std::nullopt;
  const bool other = turns_.empty() || (!others_.empty() && others_in_a_row_ < kOthersInARow);
  std::optional<core::SessionId> may_read;
  Item item = other ? TakeOther() : TakeTurn(&may_read);
  bytes_ -= item.bytes;
  lock.unlock();
  if (may_read && on_room_) on_room_(*may_read);
  return std::move(item.event);
}

void EventQueue::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  not_empty_.notify_all();
}

void EventQueue::CountLimitedReport(core::SessionId session) {
  const std::lock_guard lock(mutex_);
  ++limited_reports_;
  ++limited_[session];
}

int64_t EventQueue::limited_reports() const {
  const std::lock_guard lock(mutex_);
  return limited_reports_;
}

std::vector<core::LimitedReports> EventQueue::TakeLimited() {
  const std::lock_guard lock(mutex_);
  std::vector<core::LimitedReports> taken;
  for (const auto& [session, count] : limited_) taken.push_back({session, count});
  limited_.clear();
  return taken;
}

int64_t EventQueue::dropped_reports() const {
  const std::lock_guard lock(mutex_);
  return dropped_reports_;
}

size_t EventQueue::size() const {
  const std::lock_guard lock(mutex_);
  return Size();
}

}  // namespace eplb
