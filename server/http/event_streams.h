// Pushes what happens to peers that stay connected: server-sent events.
//   event: jobs         {"jobs":[names]}: the jobs that the daemon knows. The first message
//   data: {...}
//
//   event: job          {"job","state","step","version",..}: what a job is now, of each job at the
//   data: {...}         beginning, then of those that changed. Without an id: it is about the
//                       present alone
//   event: job_gone     {"job"}: the daemon does not know the job any more
//   data: {...}
//
//   event: alive        {}: nothing else was sent for a while
//   data: {}
//
//   id: SEQUENCE        an event of the audit log, as /api/v1/jobs/JOB/events has it; of all jobs
//   event: event        in the order in which they happened, each once
//   data: {...}
// A peer that connects again with the id that it saw last misses no event that is still stored.
#ifndef EPLB_SERVER_HTTP_EVENT_STREAMS_H_
#define EPLB_SERVER_HTTP_EVENT_STREAMS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/core/values/views.h"
#include "server/process/socket.h"
#include "server/store/store.h"

namespace eplb {

// Sources of streams. They are called on the thread of Run, and only while a peer is connected.
struct EventStreamSources {
  // See Store::ReadEventsOfAll. While it fails no event is sent; missing events follow later.
  std::function<absl::StatusOr<std::vector<StoredEvent>>(std::optional<int64_t> after,
                                                         int32_t limit)>
      events = {};
  std::function<std::vector<core::JobView>()> jobs = {};
};

class EventStreams {
 public:
  // Memory of a watcher: max_waiting_bytes and the messages of all jobs.
  struct Limits {
    size_t max_watchers = 64;
    // Bytes that a peer has not read. Above a sixteenth of this limit, the peer's events stay in
    // the store until the peer reads some. A peer above the whole limit, beside the messages of all
    // jobs, is dropped.
    size_t max_waiting_bytes = size_t{1} << 20;
    size_t max_heard_bytes = 8192;  // that a peer sends, without a meaning; above: dropped
    absl::Duration period = absl::Milliseconds(500);  // between two looks at the sources
    absl::Duration alive = absl::Seconds(15);         // a sign of life, when nothing else was sent
    absl::Duration stall = absl::Seconds(30);         // in which the peer takes no byte: dropped
  };
  EventStreams(EventStreamSources sources, Limits limits);

  // Sends `head` and all that happens from then on. after: the event that the peer saw last, 0 for
  // all that are stored; one above the newest is of another store, and counts as 0. nullopt: the
  // peer begins with what happens next. False, and `peer` is as it was, when max_watchers are
  // connected or after Stop. threads: any.
  bool Take(Descriptor& peer, const std::string& head, std::optional<int64_t> after);
  bool full() const { return num_watchers_ >= limits_.max_watchers; }
  // Serves until Stop. threads: one.
  void Run();
  // threads: any.
  void Stop();
  size_t num_watchers() const { return num_watchers_; }
  int64_t dropped() const { return dropped_; }  // watchers that did not take their bytes

 private:
  struct Watcher {
    Descriptor peer;
    std::string waiting;  // bytes to send
    size_t heard = 0;     // bytes that it sent
    std::optional<int64_t> after;
    bool begun = false;       // `after` is an event of this store, or 0
    bool knows_jobs = false;  // it was told what all jobs are
    bool slow = false;        // it took no byte for limits_.stall, as seen here or by the kernel
    absl::Time moved;         // when it took a byte last, or had none to take
    absl::Time told;          // when something was there to send last
  };
  // Content of a `job` message.
  struct JobNews {
    std::string state;
    int64_t step = 0;
    int64_t version = 0;
    int64_t window = 0;  // last step of the newest complete window
    int64_t connected = 0;
    friend bool operator==(const JobNews&, const JobNews&) = default;
  };
  // Results of reads in one turn, because most watchers have seen the same events.
  struct Reading {
    bool newest_asked = false;
    std::optional<int64_t> newest;  // sequence, 0: there is no event; none: the store failed
    std::map<int64_t, std::vector<StoredEvent>> after;
  };
  // Takes over the peers that are new, and sets `is_new` when there are any. False after Stop.
  bool TakePosted(bool& is_new);
  void Gather(absl::Time now);
  void GatherJobs();
  void GatherEvents(Watcher& watcher, Reading& reading);
  bool Begin(Watcher& watcher, Reading& reading);
  // Sends what the socket takes. False when the connection is over.
  static bool SendWaiting(Watcher& watcher, absl::Time now);
  // False when the peer is gone, or sends what it has no reason to send.
  bool Listen(Watcher& watcher) const;
  // Sends to all, and drops those that are over or slow.
  void SendToAll(absl::Time now);
  // Returns the watcher after it. Counts a slow one.
  std::list<Watcher>::iterator Drop(std::list<Watcher>::iterator one);
  // Until then, or until a peer takes bytes, is gone or is new.
  void Wait(absl::Time until);
  void Wake();

  const EventStreamSources sources_;
  const Limits limits_;
  const Descriptor wake_;
  std::atomic<size_t> num_watchers_ = 0;
  std::atomic<int64_t> dropped_ = 0;
  std::list<Watcher> watchers_;           // of Run's thread
  std::map<std::string, JobNews> known_;  // likewise
  size_t all_jobs_bytes_ = 0;             // likewise; of the messages of all jobs
  std::mutex mutex_;                      // guards what follows
  std::list<Watcher> posted_;
  bool stopped_ = false;
};

}  // namespace eplb

#endif  // EPLB_SERVER_HTTP_EVENT_STREAMS_H_
