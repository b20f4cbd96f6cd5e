// Connections of the HTTP port: how many, how long, and what waits to be written.
#ifndef EPLB_SERVER_HTTP_CONNECTIONS_H_
#define EPLB_SERVER_HTTP_CONNECTIONS_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/time/time.h"

#include "server/process/socket.h"

namespace eplb {

// Bytes that the kernel keeps for a peer that does not read; it doubles the figure. It reports a
// socket as writable once a third is free: a peer that takes 43 KB/s is seen to take something in
// each second, and a silent one holds no more of the kernel's memory.
inline constexpr int kSendBuffer = 64 << 10;

// What went wrong on the HTTP side since its start, for the metrics.

// Connections that were closed without an answer, or in the middle of it.
struct HttpDrops {
  int64_t crowded = 0;  // too many waited
  int64_t late = 0;     // the request's head did not end before its deadline
  int64_t slow = 0;     // the peer did not take its answer before the deadline
};

struct HttpFailures {
  std::map<int, int64_t> answers;  // by status code, 400 and above; the codes are our own few
  HttpDrops drops;
  int64_t watchers = 0;  // of /events, now
};

// Accepts connections and reads requests' heads without a thread per connection, so that peers who
// send nothing, or a byte at a time, cost a descriptor and nothing else.

// A connection whose request's head is complete, or longer than it may be.
struct HttpArrival {
  Descriptor descriptor;
  std::string head;  // what was read: to the empty line, and what came with it
  bool too_large = false;
};

// Probes wait for their own thread: what makes large answers may take seconds.
enum class HttpLane { kProbe, kQuestion };
inline constexpr size_t kNumHttpLanes = 2;
// By the head's first line: kProbe for /livez and /readyz.
HttpLane LaneOf(std::string_view head);

class Intake {
 public:
  struct Limits {
    // That send their heads, and as many in each lane; above it the oldest is dropped.
    size_t max_connections = 256;
    size_t max_head_bytes = 8192;                     // else too_large
    absl::Duration head_deadline = absl::Seconds(5);  // from the connection to the head's end
  };
  Intake(Descriptor listener, Limits limits);

  // Serves until Stop. threads: one; the other calls are for any.
  void Run();
  // The oldest arrival of the lane; none after Stop.
  std::optional<HttpArrival> Next(HttpLane lane);
  void Stop();
  HttpDrops drops() const { return {.crowded = crowded_, .late = late_}; }

 private:
  struct Waiting {
    HttpArrival arrival;
    absl::Time give_up;
  };
  // False when the connection is over, or has arrived.
  bool Read(Waiting& waiting);
  void Accept(absl::Time now);
  void Arrive(HttpArrival arrival);

  const Limits limits_;
  const Descriptor listener_;
  const Descriptor wake_;
  std::list<Waiting> waiting_;  // of Run's thread, oldest first
  std::atomic<int64_t> crowded_ = 0;
  std::atomic<int64_t> late_ = 0;
  absl::Time accept_from_ = absl::InfinitePast();  // of Run's thread
  struct Lane {
    std::condition_variable changed;
    std::deque<HttpArrival> arrivals;
  };
  Lane& LaneFor(HttpLane lane) { return lanes_[static_cast<size_t>(lane)]; }
  std::mutex mutex_;  // guards what follows
  std::array<Lane, kNumHttpLanes> lanes_;
  bool stopped_ = false;
};

// Writes answers to peers that read slowly, or not at all, with one thread and bounded memory.

class Outlet {
 public:
  // Above max_answers or max_bytes the answer whose peer took no byte for the longest time is
  // dropped.
  struct Limits {
    size_t max_answers = 256;                     // that their peers have not taken whole
    size_t max_bytes = size_t{64} << 20;          // of these; one answer alone may be larger
    absl::Duration stall = absl::Seconds(1);      // in which the peer takes no byte
    absl::Duration deadline = absl::Seconds(10);  // of the whole answer
  };
  explicit Outlet(Limits limits);

  // Sends what the peer's socket takes at once, and leaves the rest to Run. Never waits.
  // threads: any.
  void Post(Descriptor peer, std::string answer);
  // Writes until Stop. threads: one.
  void Run();
  // threads: any.
  void Stop();
  HttpDrops drops() const { return {.crowded = crowded_, .slow = slow_}; }

 private:
  struct Writing {
    Descriptor peer;
    std::string answer;
    size_t sent = 0;
    absl::Time moved;  // when the peer took a byte last
    absl::Time began;
  };
  enum class Sent { kAll, kSome, kNothing, kFailed };
  static Sent SendRest(Writing& writing);
  // False after Stop.
  bool TakePosted();
  void DropSurplus();
  // When the next answer is given up.
  absl::Time NextEnd() const;
  void WaitAndWrite();
  void DropSlow(absl::Time now);
  std::list<Writing>::iterator Drop(std::list<Writing>::iterator writing);

  const Limits limits_;
  const Descriptor wake_;
  std::atomic<int64_t> crowded_ = 0;
  std::atomic<int64_t> slow_ = 0;
  std::list<Writing> writings_;  // of Run's thread; the peer that took a byte last comes last
  size_t bytes_ = 0;             // of writings_; of Run's thread
  std::mutex mutex_;             // guards what follows
  std::list<Writing> posted_;    // what Run's thread has not seen yet
  bool stopped_ = false;
};

}  // namespace eplb

#endif  // EPLB_SERVER_HTTP_CONNECTIONS_H_
