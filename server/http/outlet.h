// Writes answers to peers that read slowly, or not at all, with one thread and bounded memory.
#ifndef EPLB_SERVER_HTTP_OUTLET_H_
#define EPLB_SERVER_HTTP_OUTLET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>

#include "absl/time/time.h"

#include "server/http/failures.h"
#include "server/process/descriptor.h"

namespace eplb {

// Bytes that the kernel keeps for a peer that does not read; it doubles the figure. It reports a
// socket as writable once a third is free: a peer that takes 43 KB/s is seen to take something in
// each second, and a silent one holds no more of the kernel's memory.
inline constexpr int kSendBuffer = 64 << 10;

class Outlet {
 public:
  // Above max_answers or max_bytes the answer whose peer took no byte for the longest time is
  // dropped.
  struct Limits {
    size_t max_answers = 256;                     // of which the peers have not read all
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
  // Returns false after Stop.
  bool TakePosted();
  void DropSurplus();
  // Returns when the next answer is given up.
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

#endif  // EPLB_SERVER_HTTP_OUTLET_H_
