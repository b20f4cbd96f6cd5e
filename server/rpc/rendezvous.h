// All ranks of a starting job give a blob and get everybody's: the rule, without gRPC.
#ifndef EPLB_SERVER_RPC_RENDEZVOUS_H_
#define EPLB_SERVER_RPC_RENDEZVOUS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace eplb {

// threads: safe. Callbacks are called without a lock held, each exactly once, or never after a
// successful Leave.
class Rendezvous {
 public:
  struct Limits {
    absl::Duration deadline = absl::Seconds(60);  // from the first rank to the last, at most
    size_t max_bytes = size_t{256} << 20;         // blobs of all exchanges
    int32_t max_world_size = 16384;
  };
  static constexpr size_t kMaxExchanges = 1024;
  static constexpr size_t kMaxBlobBytes = size_t{1} << 20;
  static constexpr size_t kMaxNameLength = 128;

  using Blobs = std::shared_ptr<const std::vector<std::string>>;  // [world_size], by rank
  using Done = std::function<void(const absl::StatusOr<Blobs>&)>;
  struct Member {
    std::string job = {};
    std::string key = {};
    int32_t rank = 0;
    int32_t world_size = 0;
    uint64_t nonce = 0;                                  // drawn once per process
    absl::Duration patience = absl::InfiniteDuration();  // how long the rank waits for the others
    std::string blob = {};
  };

  explicit Rendezvous(Limits limits) : limits_(limits) {}

  // A rank that comes again replaces its earlier call, which gets Aborted. A finished exchange is
  // kept until its deadline, for ranks that lost the answer and ask again; another process (nonce)
  // starts a new one.
  // caller: names this call to Leave.
  // errors, through `done`: InvalidArgument for a member that makes no sense or does not fit the
  // others, ResourceExhausted above a limit, DeadlineExceeded naming the ranks that did not come.
  void Join(Member member, const void* caller, Done done, absl::Time now);
  // The caller went away. False when its `done` was called or is being called.
  bool Leave(const void* caller);
  // Ends what is past its deadline.
  void Expire(absl::Time now);
  // Ends everything with this status.
  void FailAll(const absl::Status& status);

 private:
  struct Waiting {
    uint64_t nonce = 0;
    const void* caller = nullptr;  // null: it went away, or has its answer
    Done done = {};
    std::string blob = {};
  };
  struct Exchange {
    int32_t world_size = 0;
    absl::Time began;
    absl::Time deadline;  // the most impatient rank's
    size_t bytes = 0;
    std::map<int32_t, Waiting> ranks;
    Blobs result = nullptr;  // set once all came
  };
  using Key = std::pair<std::string, std::string>;  // job, key
  using Calls = std::vector<std::pair<Done, absl::StatusOr<Blobs>>>;

  absl::Status Check(const Member& member) const;
  absl::Status Admit(const Member& member, absl::Time now, Exchange** exchange);
  void Complete(Exchange* exchange, Calls* calls);
  void End(Exchange* exchange, const absl::Status& status, Calls* calls);
  void Erase(std::map<Key, Exchange>::iterator exchange);
  static void Make(const Calls& calls);

  const Limits limits_;
  std::mutex mutex_;  // guards what follows
  std::map<Key, Exchange> exchanges_;
  std::map<const void*, std::pair<Key, int32_t>> callers_;  // those that wait
  size_t bytes_ = 0;
};

}  // namespace eplb

#endif  // EPLB_SERVER_RPC_RENDEZVOUS_H_
