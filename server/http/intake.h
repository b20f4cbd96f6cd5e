// Accepts connections and reads requests' heads without a thread per connection, so that a peer
// that sends nothing, or a byte at a time, costs no more than a descriptor.
#ifndef EPLB_SERVER_HTTP_INTAKE_H_
#define EPLB_SERVER_HTTP_INTAKE_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"

#include "server/http/failures.h"
#include "server/process/descriptor.h"

namespace eplb {

// A connection whose request's head is complete, or longer than it may be.
struct HttpArrival {
  Descriptor descriptor;
  std::string head;  // all bytes that were read: the head to its empty line, and more
  bool too_large = false;
};

// Probes have a thread of their own, because a large answer may take seconds.
enum class HttpLane { kProbe, kQuestion };
inline constexpr size_t kNumHttpLanes = 2;
// Returns the lane by the head's first line: kProbe for /livez and /readyz.
HttpLane LaneOf(std::string_view head);

class Intake {
 public:
  struct Limits {
    // Connections that send their heads, and connections in each lane. Above the limit the oldest
    // is dropped.
    size_t max_connections = 256;
    size_t max_head_bytes = 8192;                     // above: too_large
    absl::Duration head_deadline = absl::Seconds(5);  // from the connection to the head's end
  };
  Intake(Descriptor listener, Limits limits);

  // Serves until Stop. threads: one; the other calls are for any.
  void Run();
  // Waits for the oldest arrival of the lane; none after Stop.
  std::optional<HttpArrival> Next(HttpLane lane);
  void Stop();
  HttpDrops drops() const { return {.crowded = crowded_, .late = late_}; }

 private:
  struct Waiting {
    HttpArrival arrival;
    absl::Time give_up;
  };
  // Returns false if the connection ended or has arrived.
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

}  // namespace eplb

#endif  // EPLB_SERVER_HTTP_INTAKE_H_
