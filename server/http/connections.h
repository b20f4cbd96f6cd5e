// The connections of the HTTP server. One thread accepts them, reads heads and writes answers. A
// peer that sends or takes nothing costs a descriptor and bounded memory, but no thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/time/time.h"

#include "server/http/failures.h"
#include "server/process/descriptor.h"

namespace eplb {

// A connection sends its head, waits for its answer, and takes the answer. After the answer it
// ends.
class Connections {
 public:
  struct Limits {
    // Connections in each of the three stages. Above the limit the one that made no progress for
    // the longest time is dropped.
    size_t max_connections = 256;
    size_t max_head_bytes = 8192;
    absl::Duration head_deadline = absl::Seconds(5);  // from the connection to the head's end
    // Bytes of the answers that peers have not taken. Above the limit the answer whose peer took no
    // byte for the longest time is dropped. One answer alone may be larger.
    size_t max_answer_bytes = size_t{64} << 20;
    absl::Duration stall = absl::Seconds(1);             // in which the peer takes no byte
    absl::Duration answer_deadline = absl::Seconds(10);  // for the whole answer
  };
  // All bytes of an answer, or the call that makes them on one of the threads for answers.
  struct Answer {
    std::string bytes = {};
    std::function<std::string()> make = {};
  };
  // Called on the connections' thread, so it must not wait. head: all bytes that were read, the
  // head to its empty line and more; too_large: the head is longer than max_head_bytes.
  using Handler = std::function<Answer(std::string_view head, bool too_large)>;

  // Serves until the end of this object.
  Connections(Descriptor listener, Limits limits, Handler handler);
  ~Connections();
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  // threads: any.
  HttpDrops drops() const { return {.crowded = crowded_, .late = late_, .slow = slow_}; }

 private:
  struct Connection {
    Descriptor peer;
    std::string bytes = {};  // bytes of the head until it is complete, then of the answer
    size_t sent = 0;
    absl::Time began = {};  // beginning of this stage
    absl::Time moved = {};  // when the peer took a byte last
    std::function<std::string()> make = {};
  };
  using List = std::list<Connection>;

  void Run();
  void MakeAnswers();
  // Moves the connections whose answers were made to `answering_`. False after the end.
  bool TakeAnswered();
  void DropSurplus();
  absl::Time NextEnd() const;
  void Turn();
  void Accept(absl::Time now);
  // The next three may end the connection or move it to another list.
  void Read(List::iterator one, absl::Time now);
  void BeginAnswer(List& list, List::iterator one, absl::Time now);
  void Write(List::iterator one, absl::Time now);
  void Wake() const;

  const Limits limits_;
  const Handler handler_;
  const Descriptor listener_;
  const Descriptor wake_;
  std::atomic<int64_t> crowded_ = 0;
  std::atomic<int64_t> late_ = 0;
  std::atomic<int64_t> slow_ = 0;
  // Used by the connections' thread.
  List asking_;     // oldest first
  List answering_;  // the peer that took a byte last is the last
  absl::Time accept_from_ = absl::InfinitePast();

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  List waiting_;   // oldest first
  List answered_;  // for the connections' thread
  bool stopped_ = false;
  std::vector<std::thread> threads_;  // last, because they use all others
};

}  // namespace eplb
