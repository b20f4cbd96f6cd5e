// Events that wait for the core, bounded in number and bytes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"

#include "server/core/values/events.h"

namespace eplb {

enum class Admission {
  kQueued,
  kQueuedLast,  // a report; its stream must read nothing more until on_room is called
  kDropped,     // a load report too many: quality is lost, nothing else
  kFull,  // another message too many: its stream must end; or a change or reservation too many
};

// At most max_reports_of_stream reports of a stream wait here. Its later messages stay in the
// network until the core has taken half of them. Therefore one rank's backlog does not delay other
// streams. Once a quarter of the places or bytes for reports is taken, a stream pauses after each
// report. Reports are therefore dropped only if one of each stream does not fit into the rest.
// Load reports get half of the places, so that a flood of them never costs a Ready or an Applied.
// An event other than a rank's message, a change or a reservation is always queued: at most one
// SessionClosed per stream, one SolveStarted and one Solved per job, and one drain. threads: safe.
class EventQueue {
 public:
  struct Limits {
    size_t max_events = 65536;
    size_t max_bytes = size_t{256} << 20;  // load reports and placement bodies
    size_t max_reports_of_stream = 8;
  };
  // on_room: a stream whose last Push returned kQueuedLast may read again, because at most half of
  // max_reports_of_stream reports of it wait. Called in Pop, without a lock held.
  explicit EventQueue(Limits limits, std::function<void(core::SessionId)> on_room = {})
      : limits_(limits), on_room_(std::move(on_room)) {}

  Admission Push(core::Event event);
  // The oldest event; nothing after `timeout` or after Stop.
  std::optional<core::Event> Pop(absl::Duration timeout);
  // Wakes Pop for good; what is queued is not handed out any more.
  void Stop();

  int64_t dropped_reports() const;  // for want of a place
  // A report above the limit of its stream, which was not pushed.
  void CountLimitedReport(core::SessionId session);
  int64_t limited_reports() const;
  // Those since the call before.
  std::vector<core::LimitedReports> TakeLimited();
  size_t size() const;

 private:
  struct Item {
    core::Event event;
    size_t bytes = 0;
  };
  struct OfStream {
    size_t reports = 0;
    bool paused = false;  // its last Push returned kQueuedLast
  };
  // Returns true if the stream of this event, which was just taken out, may read again.
  bool MakesRoom(const core::Event& event);

  const Limits limits_;
  const std::function<void(core::SessionId)> on_room_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable not_empty_;
  std::deque<Item> items_;
  size_t bytes_ = 0;
  std::map<core::SessionId, OfStream> streams_;  // with reports that wait
  int64_t dropped_reports_ = 0;
  int64_t limited_reports_ = 0;
  std::map<core::SessionId, int64_t> limited_;
  bool stopped_ = false;
};

}  // namespace eplb
