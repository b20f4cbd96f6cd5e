// A TCP proxy that hurts what passes it.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <random>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "tests/tools/chaos/faults.h"

namespace eplb::chaos {

// An open descriptor with one owner.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.number_) { other.number_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int get() const { return number_; }

 private:
  int number_;
};

// One thread turns it; a turn never blocks but for `max_wait`. Memory: kMaxBuffered bytes for each
// direction of a connection; a direction that is full is not read.
class Proxy {
 public:
  static constexpr size_t kMaxBuffered = 1 << 20;

  // Addresses are numeric, HOST:PORT, IPv4. Port 0 of `listen` picks a free one.
  // errors: InvalidArgument for an address, Unavailable when it cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Proxy>> Make(const std::string& listen,
                                                     const std::string& target, uint64_t seed);

  const std::string& address() const { return address_; }
  size_t num_connections() const { return connections_.size(); }

  // Moves what can be moved at `now` under `faults`; waits at most `max_wait` for something to
  // happen. also_wake: a descriptor whose input ends the wait too, or -1.
  void Turn(absl::Time now, const Faults& faults, absl::Duration max_wait, int also_wake = -1);

 private:
  struct Chunk {
    absl::Time release;
    std::string bytes;
  };
  // Bytes on their way from one socket to the other.
  struct Direction {
    std::deque<Chunk> chunks;
    size_t buffered = 0;
    absl::Time next_write = absl::InfinitePast();  // by the rate limit
    bool ended = false;                            // nothing more comes
    bool closed = false;                           // and the other side was told
  };
  struct Connection {
    Descriptor sockets[2];    // the client's, the target's
    Direction directions[2];  // from sockets[i] to sockets[1 - i]
    bool broken = false;
  };

  Proxy() = default;
  void Accept();
  void Read(absl::Time now, const Faults& faults, Connection& connection, int from);
  void Write(absl::Time now, const Faults& faults, Connection& connection, int from);
  void Cut();

  Descriptor listener_;
  std::string address_;
  sockaddr_in target_{};
  std::mt19937_64 random_;
  int64_t cuts_done_ = 0;
  std::list<Connection> connections_;
};

}  // namespace eplb::chaos
