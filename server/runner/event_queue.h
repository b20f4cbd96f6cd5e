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

// Reports are taken in turns, one of each stream per turn, so that the ranks of a job advance
// together. A rank's answers to proposals, and events that no rank sent, overtake reports; after
// kOthersInARow of these a report is next. The rest of a stream follows its reports, and a Hello
// follows all reports: the same rank's earlier stream may end among them.
// At most max_reports_of_stream reports of a stream wait here. Its later messages stay in the
// network until the core has taken half of them. Once a quarter of the places or bytes for reports
// is taken, a stream pauses after each report. Reports are therefore dropped only if one of each
// stream does not fit into the rest.
// Load reports get half of the places, so that a flood of them never costs a Ready or an Applied.
// An event other than a rank's message, a change, a reservation or of an engine is always queued:
// at most one SessionClosed per stream, one SolveStarted and one Solved per job, and one drain.
// threads: safe.
class EventQueue {
 public:
  struct Limits {
    size_t max_events = 65536;
    size_t max_bytes = size_t{256} << 20;  // load reports, placement bodies, questions of engines
    size_t max_reports_of_stream = 4;
  };
  static constexpr int kOthersInARow = 16;
  // on_room: a stream whose last Push returned kQueuedLast may read again, because at most half of
  // max_reports_of_stream reports of it wait. Called in Pop, without a lock held.
  explicit EventQueue(Limits limits, std::function<void(core::SessionId)> on_room = {})
      : limits_(limits), on_room_(std::move(on_room)) {}

  Admission Push(core::Event event);
  // The next event; nothing after `timeout` or after Stop.
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
  // A stream of which something waits for a turn.
  struct OfStream {
    size_t waiting = 0;
    int64_t last_turn = 0;
    bool paused = false;  // its last Push returned kQueuedLast
  };
  // Returns the turn of an event that may not overtake the reports that wait.
  std::optional<int64_t> TurnOf(const core::Event& event) const;
  // Returns true if the event's stream must pause.
  bool Add(Item item);
  // may_read: set to the stream of the event if it may read again.
  Item TakeTurn(std::optional<core::SessionId>* may_read);
  Item TakeOther();
  size_t Size() const { return turns_.size() + others_.size(); }

  const Limits limits_;
  const std::function<void(core::SessionId)> on_room_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable not_empty_;
  std::multimap<int64_t, Item> turns_;
  int64_t turn_ = 0;         // turn of the event that was last taken from turns_
  std::deque<Item> others_;  // events without a turn
  int others_in_a_row_ = 0;  // taken since then
  size_t bytes_ = 0;
  std::map<core::SessionId, OfStream> streams_;
  int64_t dropped_reports_ = 0;
  int64_t limited_reports_ = 0;
  std::map<core::SessionId, int64_t> limited_;
  bool stopped_ = false;
};

}  // namespace eplb
