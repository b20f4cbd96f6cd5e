// Pushes what happens to peers that stay connected: server-sent events.
//   id: SEQUENCE        an event of the audit log, as /api/v1/jobs/JOB/events has it
//   event: event
//   data: {...}
//
//   event: job          what changed of a job: {"job","state","step","version",..};
//   data: {...}         without an id, for it tells the present alone
//
//   event: job_gone     {"job"}: the daemon does not know the job any more
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
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "server/core/values/views.h"
#include "server/process/socket.h"
#include "server/store/store.h"

namespace eplb {

// What streams are made of; called on the thread of Run, and only while a peer is connected.
struct EventStreamSources {
  // As Runner::NewEvents.
  std::function<absl::StatusOr<std::vector<StoredEvent>>(int64_t after, int32_t limit)> events = {};
  std::function<std::vector<core::JobView>()> jobs = {};
};

class EventStreams {
 public:
  struct Limits {
    size_t max_watchers = 64;
    size_t max_waiting_bytes = size_t{1} << 20;       // that a peer has not taken; above: dropped
    absl::Duration period = absl::Milliseconds(500);  // between two looks at the sources
    absl::Duration alive = absl::Seconds(15);         // a comment, when nothing else was sent
    absl::Duration stall = absl::Seconds(30);         // in which the peer takes no byte: dropped
  };
  EventStreams(EventStreamSources sources, Limits limits);

  // Sends `head` and all that happens from then on. after: the event that the peer saw last; 0: it
  // begins now. False, and the connection is closed, when max_watchers are connected. threads: any.
  bool Take(Descriptor peer, std::string head, int64_t after);
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
    int64_t after = 0;
    bool knows_jobs = false;  // it was told what all jobs are
    absl::Time moved;         // when it took a byte last, or had none to take
    absl::Time told;          // when something was sent last
  };
  // What a `job` message says.
  struct JobNews {
    std::string state;
    int64_t step = 0;
    int64_t version = 0;
    int64_t window = 0;  // last step of the newest complete window
    int64_t connected = 0;
    friend bool operator==(const JobNews&, const JobNews&) = default;
  };
  // False after Stop.
  bool TakePosted();
  void Gather(absl::Time now);
  void TellEvents(Watcher& watcher, std::map<int64_t, std::vector<StoredEvent>>& read);
  // Sends what the socket takes. False when the connection is over.
  bool SendWaiting(Watcher& watcher, absl::Time now) const;
  void WaitAndSend(absl::Time until);

  const EventStreamSources sources_;
  const Limits limits_;
  const Descriptor wake_;
  std::atomic<size_t> num_watchers_ = 0;
  std::atomic<int64_t> dropped_ = 0;
  std::list<Watcher> watchers_;           // of Run's thread
  std::map<std::string, JobNews> known_;  // likewise
  std::mutex mutex_;                      // guards what follows
  std::list<Watcher> posted_;
  bool stopped_ = false;
};

}  // namespace eplb

#endif  // EPLB_SERVER_HTTP_EVENT_STREAMS_H_
