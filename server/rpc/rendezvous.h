// All ranks of a starting job give a blob and get those of all ranks: the rule, without gRPC.
//
// A start is the all-gathers 0, 1, 2 .. of one run. In all-gather 0 the ranks meet under their
// launch id alone. Its answer is a token, a hash of the nonces of the processes that met; the later
// all-gathers are those of the token, so that no other process can take part in them. A launch id
// is that of one run: a second process for a rank, while the start of the first one goes on, ends
// the start on all ranks. The daemon cannot tell which of the others belong together. So
// that launches that start at the same time are found before any of their ranks have met,
// all-gather 0 is answered a moment after its last rank came. What is not found: two runs of one id
// whose processes come in such an order, and so far apart, that a mixed set of ranks has ended its
// start before the others come.
//
// A rank sends with each all-gather what it gave to the one before: ranks that did not get the
// answer of a daemon that died get it from the next one. The answer to the last all-gather of a
// start is the only one that can be lost, to be missed at the deadline.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
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
    absl::Duration settle = absl::Seconds(1);  // from the last rank to the answer of all-gather 0
    size_t max_bytes = size_t{256} << 20;      // blobs of all all-gathers
    int32_t max_world_size = 16384;
  };
  static constexpr size_t kMaxAllGathers = 1024;
  static constexpr size_t kMaxBlobBytes = size_t{1} << 20;
  // A start is over when no rank has called for so long and none waits: its launch id is free.
  static constexpr absl::Duration kQuiet = absl::Seconds(5);

  struct Answer {
    std::vector<std::string> blobs;  // [world_size], by rank
    std::string token;
  };
  using Result = std::shared_ptr<const Answer>;
  using Done = std::function<void(const absl::StatusOr<Result>&)>;
  struct Member {
    std::string job = {};
    std::string launch_id = {};
    std::string token = {};  // token of the answer to all-gather 0; empty in all-gather 0
    int32_t number = 0;      // number of the all-gather in its start
    int32_t rank = 0;
    int32_t world_size = 0;
    uint64_t nonce = 0;                                  // drawn once per process
    absl::Duration patience = absl::InfiniteDuration();  // how long the rank waits for the others
    std::string blob = {};
    std::string previous = {};  // blob that this rank gave to the all-gather before
  };

  explicit Rendezvous(Limits limits) : limits_(limits) {}

  // A rank that comes again replaces its earlier call, which gets Aborted. A finished all-gather is
  // kept until its deadline, for ranks that lost the answer and ask again.
  // caller: names this call to Leave.
  // errors, through `done`: InvalidArgument for a member that makes no sense or does not fit the
  // others; FailedPrecondition on all ranks of a start whose launch id two runs share;
  // ResourceExhausted above a limit, DeadlineExceeded naming the ranks that did not come.
  void Join(Member member, const void* caller, Done done, absl::Time now);
  // The caller went away. False when its `done` was called or is being called.
  bool Leave(const void* caller);
  // Answers what has settled, ends what is past its deadline.
  void Expire(absl::Time now);
  // Ends everything with this status.
  void FailAll(const absl::Status& status);

  // The token of ranks with these nonces, in rank order.
  static std::string TokenOf(std::string_view launch_id, const std::map<int32_t, uint64_t>& nonces);

 private:
  struct Waiting {
    uint64_t nonce = 0;
    const void* caller = nullptr;  // null: it has its answer, or gave its blob afterwards
    Done done = {};
    std::string blob = {};
    std::string previous = {};
    size_t bytes() const { return blob.size() + previous.size(); }
  };
  struct AllGather {
    int32_t world_size = 0;
    absl::Time began;
    absl::Time deadline;                          // the most impatient rank's
    absl::Time settled = absl::InfiniteFuture();  // for all-gather 0, once all ranks called
    size_t bytes = 0;
    std::map<int32_t, Waiting> ranks;
    Result result = nullptr;  // set once all came
  };
  // AllGathers of a launch id stand together.
  struct Key {
    std::string job;
    std::string launch_id;
    std::string token;
    int32_t number = 0;
    friend bool operator<(const Key& a, const Key& b) {
      return std::tie(a.job, a.launch_id, a.token, a.number) <
             std::tie(b.job, b.launch_id, b.token, b.number);
    }
  };
  using AllGathers = std::map<Key, AllGather>;
  // The newest start under a launch id.
  struct Run {
    absl::Time active;                   // its newest call
    std::map<int32_t, uint64_t> nonces;  // nonces of the ranks that called
    std::string token;                   // empty: all-gather 0 has no answer yet
    absl::Status refused;                // two runs share the id
  };
  using LaunchKey = std::pair<std::string, std::string>;  // job, launch id
  using Calls = std::vector<std::pair<Done, absl::StatusOr<Result>>>;

  absl::Status Check(const Member& member) const;
  // errors: FailedPrecondition for a process that came as a rank of another process's start, which
  // has ended then, and for what is left of a start that ended so.
  absl::Status TellApart(const Member& member, absl::Time now, Calls* calls);
  // Returns true if another process has the member's rank where it would meet the member's other
  // ranks.
  bool MeetsAnother(const Member& member) const;
  bool HasOpenAllGather(const LaunchKey& run) const;
  absl::Status EndStart(const Member& member, absl::Time now, Calls* calls);
  void RefuseToken(const std::string& token, const absl::Status& status);
  absl::Status Admit(const Member& member, absl::Time now, AllGathers::iterator* all_gather);
  void Wait(Member member, const void* caller, Done done, absl::Time now,
            AllGathers::iterator all_gather, Calls* calls);
  // The all-gather is complete with what ranks of the next one say that they gave to it.
  void CompleteFrom(AllGathers::iterator all_gather, AllGathers::const_iterator next, Calls* calls);
  // Looks for that before and behind an all-gather that a rank has joined.
  void CompleteNeighbours(const Key& joined, Calls* calls);
  void Complete(AllGathers::iterator all_gather, Calls* calls);
  void End(AllGather* all_gather, const absl::Status& status, Calls* calls);
  void Erase(AllGathers::iterator all_gather);
  static void Make(const Calls& calls);

  const Limits limits_;
  std::mutex mutex_;  // guards what follows
  AllGathers all_gathers_;
  std::map<LaunchKey, Run> launches_;
  std::map<std::string, absl::Status> refused_tokens_;  // at most kMaxAllGathers
  std::deque<std::string> refused_in_order_;
  std::map<const void*, std::pair<Key, int32_t>> callers_;  // those that wait
  size_t bytes_ = 0;
};

}  // namespace eplb
