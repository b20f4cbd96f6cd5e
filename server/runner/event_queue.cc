#include "server/runner/event_queue.h"

#include "proto/wire/report_counts.h"

namespace eplb {
namespace {

// Part of the places and bytes from which on a stream pauses after each report: 1 / 4. The default
// 32,768 places for reports then have room for one more of each of the 20,000 streams.
constexpr size_t kPauseDivisor = 4;

// The part of a message that grows with the model.
size_t BytesOf(const wire::UpMessage& message) {
  if (const auto* report = std::get_if<wire::LoadReport>(&message)) {
    return wire::CountBytes(*report);
  }
  if (const auto* body = std::get_if<wire::PlacementBody>(&message)) {
    const Placement& placement = body->placement;  // three tables [L, S] and two [L, E]
    return sizeof(int32_t) * static_cast<size_t>(3 * placement.replica_rank().size() +
                                                 2 * placement.logical_replica_count().size());
  }
  return 0;
}

}  // namespace

Admission EventQueue::Push(core::Event event) {
  const auto* message = std::get_if<core::SessionMessage>(&event);
  const size_t bytes = message == nullptr ? 0 : BytesOf(message->message);
  Admission admission = Admission::kQueued;
  {
    const std::lock_guard lock(mutex_);
    const bool asked_for = std::holds_alternative<core::Change>(event) ||
                           std::holds_alternative<core::ReserveVersion>(event);
    if (asked_for && items_.size() >= limits_.max_events) return Admission::kFull;
    if (message != nullptr) {
      const bool report = std::holds_alternative<wire::LoadReport>(message->message);
      const size_t places = report ? limits_.max_events / 2 : limits_.max_events;
      if (items_.size() >= places || bytes > limits_.max_bytes - bytes_) {
        if (report) ++dropped_reports_;
        return report ? Admission::kDropped : Admission::kFull;
      }
      if (report) {
        OfStream& stream = streams_[message->session];
        stream.paused |= ++stream.reports >= limits_.max_reports_of_stream ||
                         items_.size() >= places / kPauseDivisor ||
                         bytes_ + bytes > limits_.max_bytes / kPauseDivisor;
        if (stream.paused) admission = Admission::kQueuedLast;
      }
    }
    bytes_ += bytes;
    items_.push_back({.event = std::move(event), .bytes = bytes});
  }
  not_empty_.notify_one();
  return admission;
}

bool EventQueue::MakesRoom(const core::Event& event) {
  const auto* message = std::get_if<core::SessionMessage>(&event);
  if (message == nullptr || !std::holds_alternative<wire::LoadReport>(message->message)) {
    return false;
  }
  const auto found = streams_.find(message->session);
  OfStream& stream = found->second;
  const bool room = --stream.reports <= limits_.max_reports_of_stream / 2 && stream.paused;
  if (room) stream.paused = false;
  if (stream.reports == 0) streams_.erase(found);
  return room;
}

std::optional<core::Event> EventQueue::Pop(absl::Duration timeout) {
  std::unique_lock lock(mutex_);
  (void)not_empty_.wait_for(lock, absl::ToChronoMicroseconds(timeout),
                            [this] { return stopped_ || !items_.empty(); });
  if (stopped_ || items_.empty()) return std::nullopt;
  std::optional<core::Event> event = std::move(items_.front().event);
  bytes_ -= items_.front().bytes;
  items_.pop_front();
  const bool room = MakesRoom(*event);
  lock.unlock();
  if (room && on_room_) on_room_(std::get<core::SessionMessage>(*event).session);
  return event;
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
  return items_.size();
}

}  // namespace eplb
