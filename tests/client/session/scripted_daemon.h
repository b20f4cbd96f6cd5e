// An in-process daemon that says what a test tells it to, over real gRPC.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "proto/wire/messages.h"

namespace eplb {

// Serves eplb.v1.Balancer and eplb.v1.Query on the loopback. Every Hello is answered with Welcome;
// all else is said by the test. Threads: safe.
class ScriptedDaemon {
 public:
  struct Options {
    int port = 0;  // 0 picks a free one
    int64_t term = 1;
    absl::Status refusal = absl::OkStatus();  // not OK: ends every session after its Hello
    std::optional<wire::PlacementBody> stored =
        std::nullopt;          // answer of Query.GetPlacement; absent: NOT_FOUND
    int64_t next_version = 0;  // answered with it
    std::optional<int64_t> reserved = std::nullopt;  // by ReserveVersion; else UNIMPLEMENTED
    std::string waits = "";                          // in Welcome
    // Ranks that GetLeader says are connected, with `term`; else NOT_FOUND.
    std::optional<int32_t> leads_with = std::nullopt;
    // ReserveVersion and GetPlacement are refused as by a standby, which names this leader.
    std::optional<std::string> standby_for = std::nullopt;
  };
  explicit ScriptedDaemon(const Options& options);
  // Ends all streams at once, as a killed daemon does.
  ~ScriptedDaemon();

  int port() const;
  std::string endpoint() const;

  // Waits for the first Hello of ranks 0..num_ranks-1.
  void WaitForRanks(int32_t num_ranks) const;

  // Waits until so many calls of AllGather came.
  void WaitForAllGathers(int count) const;

  // To one rank, or to each that has an open session. False when that rank has none.
  bool Send(int32_t rank, const wire::DownMessage& message);
  void SendAll(const wire::DownMessage& message);
  // A message as it stands on the wire.
  bool SendBytes(int32_t rank, const std::string& bytes);
  // A message that the rank cannot parse: a text that is not UTF-8.
  bool SendUnreadable(int32_t rank);

  // The run that GetLeader was asked for last; empty: it was not.
  std::string asked_for() const;

  // Everything that a rank said so far, over all its sessions.
  std::vector<wire::UpMessage> Said(int32_t rank) const;
  // Waits until the rank has said `count` messages of kind T and returns the last of them.
  // Fails the test after 20 s and returns nothing.
  template <class T>
  std::optional<T> WaitFor(int32_t rank, int count = 1) const {
    std::optional<T> found;
    const bool came = Await([&] {
      int seen = 0;
      for (const wire::UpMessage& message : Said(rank)) {
        const T* said = std::get_if<T>(&message);
        if (said == nullptr || ++seen < count) continue;
        found.emplace(*said);
        return true;
      }
      return false;
    });
    return came ? found : std::nullopt;
  }

 private:
  struct Impl;
  bool Await(const std::function<bool()>& condition) const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace eplb
