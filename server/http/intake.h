// Accepts connections and reads requests' heads without a thread per connection, so that peers who
// send nothing, or a byte at a time, cost a descriptor and nothing else.
#ifndef EPLB_SERVER_HTTP_INTAKE_H_
#define EPLB_SERVER_HTTP_INTAKE_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"

#include "server/descriptor.h"
#include "server/http/http_failures.h"

namespace eplb {

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

}  // namespace eplb

#endif  // EPLB_SERVER_HTTP_INTAKE_H_
